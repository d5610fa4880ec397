"""A sequence, and what belongs to it alone."""
