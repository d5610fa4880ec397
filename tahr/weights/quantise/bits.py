"""Putting blocks of packed bytes together: the way back from `bits`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tahr.weights.dequantise.bits import Bytes, Floats

Codes = NDArray[Any]  # bytes; shifting makes a type checker forget that


def pack(codes: Codes, width: int, group: int) -> Bytes:
    """Pack codes of `width` bits, `group` bytes at a time: the inverse of `bits.unpack`."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    parts = codes.reshape(len(codes), -1, 8 // width, group) << shifts
    packed: Bytes = np.bitwise_or.reduce(parts, axis=2).reshape(len(codes), -1)
    return packed


def half_bytes(values: Floats) -> Bytes:
    """Each number of `[n, k]` as the two bytes of an f16."""
    return np.ascontiguousarray(values.astype("<f2")).view(np.uint8)


def rounded_half(values: Floats) -> Floats:
    """The numbers an f16 will give back: codes must fit the scale that is stored, not the one that was found."""
    return values.astype(np.float16).astype(np.float32)


def inverse(values: Floats) -> Floats:
    """One over each number, and nothing over nothing."""
    return np.divide(np.float32(1), values, out=np.zeros_like(values), where=values != 0)


def whole(values: Floats, low: int, high: int) -> Floats:
    """The nearest whole numbers from low to high."""
    return np.clip(np.rint(values), low, high)


def blocks_of(*parts: Codes) -> Bytes:
    """Blocks from their parts in the order of the file."""
    return np.concatenate(parts, axis=1)


def columns(blocks: Floats, group: int) -> Floats:
    """Groups of `group` values as columns: a sum over groups then runs along whole rows, which NumPy does fast."""
    return np.ascontiguousarray(blocks.reshape(-1, group).T)


def rows(grouped: Floats | Bytes, block: int) -> Bytes:
    """Columns of codes as blocks of bytes again; negative codes become their two's complement."""
    return np.ascontiguousarray(grouped.T).astype(np.int16).astype(np.uint8).reshape(-1, block)
