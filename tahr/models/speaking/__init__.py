"""Models that speak: every token stands for a frame of sound, whose codes are drawn one after the other."""
