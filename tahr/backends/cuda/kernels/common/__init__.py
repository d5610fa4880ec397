"""What kernels share: how they start, sizes of a card, rows, attention."""
