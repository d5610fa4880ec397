"""Order of a row's tokens: falling logits, ties to the lower id."""

import numpy as np
from numpy.typing import NDArray

from tahr.backends.sampling.lanes import Floats, Ints

ID_BITS = np.uint64(32)

ID_MASK = np.uint64(2**32 - 1)


def all_ids(logits: Floats) -> Ints:
    """All tokens of each row in order."""
    keys = sort_keys(logits, np.arange(logits.shape[1]))
    keys.sort(axis=1)
    return (keys & ID_MASK).astype(np.int64)


def best_ids(row: Floats, floor: float, n: int) -> Ints:
    """The n best tokens of a row in order, of those at or above the floor."""
    at = places(row >= floor)
    keys = sort_keys(row[at], at)
    keys.sort()
    return (keys[:n] & ID_MASK).astype(np.int64)


def places(flags: NDArray[np.bool_]) -> Ints:
    """Where a row of flags, a multiple of 8 long, is set. Quick if few are: eight flags are looked at in one."""
    eights = np.flatnonzero(flags.view(np.uint64))
    near = (eights[:, None] * 8 + np.arange(8)).ravel()
    found: Ints = near[flags[near]]
    return found


def sort_keys(logits: Floats, ids: Ints) -> NDArray[np.uint64]:
    """One integer per token that sorts by falling logit, then by rising id."""
    bits = (logits + np.float32(0)).view(np.uint32)  # adding 0 makes -0 a 0, as they are equal
    negative = bits >> np.uint32(31) != 0
    falling = np.where(negative, bits, bits ^ np.uint32(0x7FFFFFFF))
    return (falling.astype(np.uint64) << ID_BITS) | ids.astype(np.uint64)
