"""Decides which sequences advance, runs the step, and samples the next tokens."""
