"""Taking blocks of packed bytes apart: what every dequantiser is made of."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]  # blocks: [n_blocks, block_bytes]
Floats = NDArray[np.float32]  # values: [n_blocks, block]


def unpack(packed: Bytes, width: int, group: int) -> Bytes:
    """Codes of `width` bits: each `group` bytes yield all their lowest codes, then all their next codes, and so on."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    codes = packed.reshape(len(packed), -1, 1, group) >> shifts
    return (codes & np.uint8((1 << width) - 1)).reshape(len(packed), -1)


def join(low: Bytes, high: Bytes, at: int) -> Bytes:
    """Codes whose bits from bit `at` up were stored apart."""
    return low | high << np.uint8(at)


def less(codes: NDArray[np.integer], middle: int) -> Floats:
    """Codes as numbers around zero."""
    return codes.astype(np.float32) - np.float32(middle)


def words(packed: Bytes, dtype: str) -> NDArray[np.generic]:
    """View bytes as little-endian numbers, e.g. `[n, 8]` bytes as `[n, 2]` of `<u4`."""
    return np.ascontiguousarray(packed).view(dtype)


def halves(packed: Bytes) -> Floats:
    """Each two bytes as one f16, widened."""
    return words(packed, "<f2").astype(np.float32)


def signs(bits: Bytes) -> Floats:
    """Bit 0 is plus one, bit 1 is minus one."""
    return np.float32(1) - np.float32(2) * bits
