"""Kernels in Gluon, Triton's lower language, for what only Hopper cards have: products that run on their own."""
