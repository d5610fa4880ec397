"""Quantisers of the K family: a scale for each group of 16 or 32 values, itself a small integer times a block's f16."""

import numpy as np
from numpy.typing import NDArray

from tahr.weights.dequantise.bits import Bytes, Floats
from tahr.weights.quantise.bits import blocks_of, columns, half_bytes, inverse, pack, rounded_half, rows, whole
from tahr.weights.quantise.fit import Levels, fit_scale, fit_scale_and_offset, largest

BLOCK = 256
Tries = NDArray[np.float64]


def q2_k(blocks: Floats) -> Bytes:
    x = columns(blocks, 16)
    scale, offset = fit_scale_and_offset(x, np.abs(x), 3, np.arange(-5, 11) / 10)
    scales, d = _small(scale.reshape(-1, 16), 15)
    offsets, d_offset = _small(offset.reshape(-1, 16), 15)
    codes = _codes(x, d * scales, d_offset * offsets, 3)
    packed = pack(rows(codes, BLOCK), 2, 32)
    heads = scales.astype(np.uint8) | offsets.astype(np.uint8) << 4
    return blocks_of(heads, packed, half_bytes(d), half_bytes(d_offset))


def q3_k(blocks: Floats) -> Bytes:
    codes, scales, d = _signed(blocks, 4, np.arange(-9, 10) / 10, 32)
    heads = (scales + 32).astype(np.uint8)
    high = pack(codes >> 2, 1, 32)
    low = pack(codes & 0x03, 2, 32)
    low_heads = pack(heads & 0x0F, 4, 8)
    high_heads = pack(heads >> 4, 2, 4)
    return blocks_of(high, low, low_heads, high_heads, half_bytes(d))


def q4_k(blocks: Floats) -> Bytes:
    head, codes = _with_offsets(blocks, 15, np.arange(-10, 11) / 10)
    return blocks_of(head, pack(codes, 4, 32))


def q5_k(blocks: Floats) -> Bytes:
    head, codes = _with_offsets(blocks, 31, np.arange(-5, 11) / 10)
    high = pack(codes >> 4, 1, 32)
    low = pack(codes & 0x0F, 4, 32)
    return blocks_of(head, high, low)


def q6_k(blocks: Floats) -> Bytes:
    codes, scales, d = _signed(blocks, 32, np.arange(-9, 10) / 10, 128)
    low = pack(codes & 0x0F, 4, 64)
    high = pack(codes >> 4, 2, 32)
    heads = scales.astype(np.int8).view(np.uint8)
    return blocks_of(low, high, heads, half_bytes(d))


def _with_offsets(blocks: Floats, highest: int, stretch: Tries) -> tuple[Bytes, Bytes]:
    """The head Q4_K and Q5_K share, and codes from 0 to `highest`."""
    x = columns(blocks, 32)
    weights = np.sqrt((x * x).mean(axis=0)) + np.abs(x)
    scale, offset = fit_scale_and_offset(x, weights, highest, stretch)
    scales, d = _small(scale.reshape(-1, 8), 63)
    offsets, d_offset = _small(offset.reshape(-1, 8), 63)
    codes = _codes(x, d * scales, d_offset * offsets, highest)
    head = _head(scales.astype(np.uint8), offsets.astype(np.uint8), d, d_offset)
    return head, rows(codes, BLOCK)


def _small(values: Floats, highest: int) -> tuple[Floats, Floats]:
    """Each block's values as whole numbers from 0 to `highest`, and the f16 they are to be multiplied with."""
    top = values.max(axis=1, keepdims=True)
    d = rounded_half(top / np.float32(highest))
    return whole(values * inverse(d), 0, highest), d


def _codes(x: Floats, scale: Floats, offset: Floats, highest: int) -> Floats:
    shifted = x + offset.reshape(-1)
    return whole(shifted * inverse(scale.reshape(-1)), 0, highest)


def _head(scales: Bytes, offsets: Bytes, d: Floats, d_offset: Floats) -> Bytes:
    """Two f16 and twelve bytes; the high bits of the last four scales and offsets lie on top of the first four."""
    late_scales = scales[:, 4:]
    late_offsets = offsets[:, 4:]
    first = scales[:, :4] | late_scales >> 4 << 6
    second = offsets[:, :4] | late_offsets >> 4 << 6
    third = late_scales & 0x0F | late_offsets << 4
    return blocks_of(half_bytes(d), half_bytes(d_offset), first, second, third)


def _signed(blocks: Floats, n: int, stretch: Tries, n_scales: int) -> tuple[Bytes, Floats, Floats]:
    """Codes from 0 to 2n - 1 that stand for -n to n - 1, signed scales from -n_scales to n_scales - 1, and the f16."""
    x = columns(blocks, 16)
    # The largest value is given the sign of the longer side.
    fitted = fit_scale(x, -n - stretch, _levels(n))
    scales, d = signed_scales(fitted.reshape(-1, 16), n_scales)
    steps = (d * scales).reshape(-1)
    codes = whole(x * inverse(steps), -n, n - 1)
    return rows(codes + np.float32(n), BLOCK), scales, d


def signed_scales(scale: Floats, n: int) -> tuple[Floats, Floats]:
    """Each block's scales as whole numbers from -n to n - 1, and the f16 they are to be multiplied with."""
    top = largest(scale.T)[:, None]
    d = rounded_half(top / np.float32(-n))
    return whole(scale * inverse(d), -n, n - 1), d


def _levels(n: int) -> Levels:
    return lambda scaled: whole(scaled, -n, n - 1)
