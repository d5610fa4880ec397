"""Rows folded into lanes, and their sums in an order that does not depend on how many rows there are."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

Doubles = NDArray[np.float64]

Ints = NDArray[np.int64]

CACHED = 2**18  # logits worked on at a time: few enough to stay in the processor's cache from pass to pass

LANES = 64  # a row is folded into this many lanes: maxima and sums across lanes run at the speed of memory


def spans(n: int, width: int) -> list[slice]:
    """Slices of n rows of that width, none of them more than fits the cache."""
    step = max(1, CACHED // width)
    return [slice(i, i + step) for i in range(0, n, step)]


def fold(padded: Floats) -> Floats:
    """A padded row as lanes and columns: [n, LANES, columns]."""
    return padded.reshape(len(padded), LANES, -1)


def sums(padded: Floats) -> Doubles:
    """The sum of each row: across lanes in single precision, then in double."""
    totals: Doubles = fold(padded).sum(axis=1).astype(np.float64).sum(axis=1)
    return totals


def running_sums(values: NDArray[np.floating]) -> Doubles:
    """Running sums of each row, in the one order that does not depend on how many rows there are."""
    return np.cumsum(values, axis=1, dtype=np.float64)


def first_above(totals: Doubles, target: Doubles) -> Ints:
    """Where each row of running sums first exceeds its target; at the latest where it reaches its end."""
    reachable = np.minimum(target, np.nextafter(totals[:, -1], 0))
    found: Ints = (totals <= reachable[:, None]).sum(axis=1)
    return found
