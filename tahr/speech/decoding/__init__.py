"""Rules for the tokens of a window, and for the way through a recording from window to window."""
