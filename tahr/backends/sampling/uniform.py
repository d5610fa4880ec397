"""Random numbers by counting: the k-th number of a key depends on nothing but the key and k, so there is no state."""

import os

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]

STEP = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: multiples of it spread evenly


def mixed(x: Keys) -> Keys:
    """Every bit of x stirred into every other (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def key_of(seed: int | None, index: int) -> int:
    """The key of the index-th choice of a request; without a seed, a fresh one."""
    start = int.from_bytes(os.urandom(8), "little") if seed is None else seed % 2**64
    stirred = mixed(np.array([start], np.uint64) + STEP)
    return int(mixed(stirred + np.uint64(index))[0])


def uniform(keys: Keys, k: Keys) -> NDArray[np.float64]:
    """The k-th number of each key, evenly spread over [0, 1)."""
    numbers: NDArray[np.float64] = (mixed(keys + (k + np.uint64(1)) * STEP) >> np.uint64(11)).astype(np.float64)
    return numbers * 2.0**-53
