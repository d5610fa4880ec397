"""Random numbers by counting: the k-th number of a key depends on nothing but the key and k, so there is no state."""

import os

BITS = 2**64 - 1
STEP = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: multiples of it spread evenly


def mixed(x: int) -> int:
    """Every bit of x stirred into every other (the finaliser of splitmix64)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & BITS
    return x ^ (x >> 31)


def key_of(seed: int | None, index: int) -> int:
    """The key of the index-th answer to a request; without a seed, one nobody has had before."""
    start = int.from_bytes(os.urandom(8), "little") if seed is None else seed
    return mixed((mixed((start + STEP) & BITS) + index) & BITS)


def uniform(key: int, k: int) -> float:
    """The k-th number of a key, evenly spread over [0, 1)."""
    return (mixed((key + (k + 1) * STEP) & BITS) >> 11) * 2.0**-53
