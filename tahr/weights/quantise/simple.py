"""Quantisers with one scale per block: numbers as they are, Q4_0 to Q8_0. Each is the way back of its dequantiser."""

import numpy as np

from tahr.weights.dequantise.bits import Bytes, Floats
from tahr.weights.quantise.bits import blocks_of, half_bytes, inverse, pack

INFINITY = 0x7F80  # bf16 without its sign


def f32(blocks: Floats) -> Bytes:
    return np.ascontiguousarray(blocks.astype("<f4")).view(np.uint8)


def f16(blocks: Floats) -> Bytes:
    return half_bytes(blocks)


def bf16(blocks: Floats) -> Bytes:
    bits = np.ascontiguousarray(blocks).view(np.uint32)
    # Round to nearest, ties to even; adding cannot carry past infinity because values are finite, but it can carry to
    # it.
    upper = (bits + np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1))) >> 16
    if (upper & np.uint32(0x7FFF) == INFINITY).any():
        raise FloatingPointError("overflow")
    return upper.astype("<u2").view(np.uint8)


def q4_0(blocks: Floats) -> Bytes:
    scale, codes = _centred(blocks, 8)
    return blocks_of(half_bytes(scale), pack(codes, 4, 16))


def q4_1(blocks: Floats) -> Bytes:
    scale, lowest, codes = _ranged(blocks, 15)
    return blocks_of(half_bytes(scale), half_bytes(lowest), pack(codes, 4, 16))


def q5_0(blocks: Floats) -> Bytes:
    scale, codes = _centred(blocks, 16)
    return blocks_of(half_bytes(scale), _five_bits(codes))


def q5_1(blocks: Floats) -> Bytes:
    scale, lowest, codes = _ranged(blocks, 31)
    return blocks_of(half_bytes(scale), half_bytes(lowest), _five_bits(codes))


def q8_0(blocks: Floats) -> Bytes:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * inverse(scale)
    # Halves go away from zero: that is what every other writer of this format does.
    codes = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
    return blocks_of(half_bytes(scale), codes.view(np.uint8))


def _centred(blocks: Floats, middle: int) -> tuple[Floats, Bytes]:
    """Codes around `middle`; the largest value, whatever its sign, gets the code 0, which reaches one step further."""
    at = np.abs(blocks).argmax(axis=1, keepdims=True)
    scale = np.take_along_axis(blocks, at, axis=1) / np.float32(-middle)
    codes = np.trunc(blocks * inverse(scale) + np.float32(middle + 0.5))
    return scale, np.minimum(codes, 2 * middle - 1).astype(np.uint8)


def _ranged(blocks: Floats, highest: int) -> tuple[Floats, Floats, Bytes]:
    """Codes from 0 at the lowest value to `highest` at the highest."""
    lowest = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - lowest) / np.float32(highest)
    codes = np.trunc((blocks - lowest) * inverse(scale) + np.float32(0.5))
    return scale, lowest, np.minimum(codes, highest).astype(np.uint8)


def _five_bits(codes: Bytes) -> Bytes:
    return blocks_of(pack(codes >> 4, 1, 1), pack(codes & 0x0F, 4, 16))
