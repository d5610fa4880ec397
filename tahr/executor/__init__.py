"""Execution of steps: requests of arrays and numbers go in, tokens and rows come out; it alone sees a backend."""
