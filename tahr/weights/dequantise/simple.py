"""Dequantisers with one scale per block: numbers as they are, Q1_0 to Q8_1, and the ternary TQ formats."""

from collections.abc import Callable

import numpy as np

from tahr.weights.dequantise.bits import Bytes, Floats, halves, join, less, signs, unpack, words


def number(dtype: str) -> Callable[[Bytes], Floats]:
    """A dequantiser for plain numbers of a little-endian NumPy dtype."""

    def dequantise(blocks: Bytes) -> Floats:
        return words(blocks, dtype).astype(np.float32)

    return dequantise


def bf16(blocks: Bytes) -> Floats:
    upper = words(blocks, "<u2").astype(np.uint32)
    return (upper << 16).view(np.float32)


def f8_e5m2(blocks: Bytes) -> Floats:
    # The upper byte of an f16. Codes that are no numbers stay none, and NumPy need not say so.
    with np.errstate(invalid="ignore"):
        whole = blocks.astype(np.uint16) << 8
        return whole.view(np.float16).astype(np.float32)


def f8_e4m3(blocks: Bytes) -> Floats:
    # Moved into an f16's fields the value is 2^8 too small, subnormals included; only 0x7f and 0xff are not numbers.
    wide = blocks.astype(np.uint16)
    sign_bit = wide >> 7 << 15
    rest = wide & 0x7F
    moved = (sign_bit | rest << 7).view(np.float16)
    value = moved.astype(np.float32) * np.float32(256)
    return np.where(rest == 0x7F, np.float32(np.nan), value)


def fp8_128(blocks: Bytes) -> Floats:
    scale = words(blocks[:, :4], "<f4").astype(np.float32)
    return f8_e4m3(blocks[:, 4:]) * scale


def f8_e8m0(blocks: Bytes) -> Floats:
    exponent = np.minimum(blocks, 0xFE).astype(np.int32) - 127
    value = np.ldexp(np.float32(1), exponent)
    return np.where(blocks == 0xFF, np.float32(np.nan), value)


def q1_0(blocks: Bytes) -> Floats:
    scale = halves(blocks[:, :2])
    bits = unpack(blocks[:, 2:], 1, 1)
    return -scale * signs(bits)


def q2_0(blocks: Bytes) -> Floats:
    scale = halves(blocks[:, :2])
    codes = unpack(blocks[:, 2:], 2, 1)
    return scale * less(codes, 1)


def q4_0(blocks: Bytes) -> Floats:
    scale = halves(blocks[:, :2])
    codes = unpack(blocks[:, 2:], 4, 16)
    return scale * less(codes, 8)


def q4_1(blocks: Bytes) -> Floats:
    scale = halves(blocks[:, :2])
    offset = halves(blocks[:, 2:4])
    codes = unpack(blocks[:, 4:], 4, 16)
    return scale * codes + offset


def q5_0(blocks: Bytes) -> Floats:
    scale = halves(blocks[:, :2])
    codes = _five_bits(blocks[:, 2:])
    return scale * less(codes, 16)


def q5_1(blocks: Bytes) -> Floats:
    scale = halves(blocks[:, :2])
    offset = halves(blocks[:, 2:4])
    codes = _five_bits(blocks[:, 4:])
    return scale * codes + offset


def _five_bits(packed: Bytes) -> Bytes:
    # Four bytes of fifth bits, then the low four bits of each code.
    high = unpack(packed[:, :4], 1, 1)
    low = unpack(packed[:, 4:], 4, 16)
    return join(low, high, 4)


def q8_0(blocks: Bytes) -> Floats:
    scale = halves(blocks[:, :2])
    codes = blocks[:, 2:].view(np.int8)
    return scale * codes


def q8_1(blocks: Bytes) -> Floats:
    # Bytes 2 and 3 hold the scaled sum of the codes, which only dot products want.
    scale = halves(blocks[:, :2])
    codes = blocks[:, 4:].view(np.int8)
    return scale * codes
