"""Sampling tokens from rows of logits: the interface, and NumPy's version of it, which says what is meant."""
