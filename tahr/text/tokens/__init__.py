"""Text becomes tokens, and tokens text."""
