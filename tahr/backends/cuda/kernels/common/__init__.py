"""Common parts of kernels: how they start, sizes of a card, rows, attention."""
