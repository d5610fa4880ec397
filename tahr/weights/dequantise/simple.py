"""Dequantisers with one scale per block: numbers as they are, Q1_0 to Q8_1, and the ternary TQ formats."""

from collections.abc import Callable

import numpy as np

from tahr.weights.dequantise.bits import Bytes, Floats, halves, join, signs, unpack, words


def number(dtype: str) -> Callable[[Bytes], Floats]:
    """A dequantiser for plain numbers of a little-endian NumPy dtype."""

    def dequantise(blocks: Bytes) -> Floats:
        return words(blocks, dtype).astype(np.float32)

    return dequantise


def bf16(blocks: Bytes) -> Floats:
    return (words(blocks, "<u2").astype(np.uint32) << 16).view(np.float32)


def f8_e5m2(blocks: Bytes) -> Floats:
    # The upper byte of an f16. Codes that are no numbers stay none, and NumPy need not say so.
    with np.errstate(invalid="ignore"):
        return (blocks.astype(np.uint16) << 8).view(np.float16).astype(np.float32)


def f8_e4m3(blocks: Bytes) -> Floats:
    # Moved into an f16's fields the value is 2^8 too small, subnormals included; only 0x7f and 0xff are not numbers.
    sign_bit = blocks.astype(np.uint16) >> 7 << 15
    rest = blocks.astype(np.uint16) & 0x7F
    value = (sign_bit | rest << 7).view(np.float16).astype(np.float32) * np.float32(256)
    return np.where(rest == 0x7F, np.float32(np.nan), value)


def fp8_128(blocks: Bytes) -> Floats:
    return f8_e4m3(blocks[:, 4:]) * words(blocks[:, :4], "<f4").astype(np.float32)


def f8_e8m0(blocks: Bytes) -> Floats:
    value = np.ldexp(np.float32(1), np.minimum(blocks, 0xFE).astype(np.int32) - 127)
    return np.where(blocks == 0xFF, np.float32(np.nan), value)


def q1_0(blocks: Bytes) -> Floats:
    return -halves(blocks[:, :2]) * signs(unpack(blocks[:, 2:], 1, 1))


def q2_0(blocks: Bytes) -> Floats:
    return halves(blocks[:, :2]) * (unpack(blocks[:, 2:], 2, 1).astype(np.float32) - np.float32(1))


def q4_0(blocks: Bytes) -> Floats:
    return halves(blocks[:, :2]) * (unpack(blocks[:, 2:], 4, 16).astype(np.float32) - np.float32(8))


def q4_1(blocks: Bytes) -> Floats:
    return halves(blocks[:, :2]) * unpack(blocks[:, 4:], 4, 16) + halves(blocks[:, 2:4])


def q5_0(blocks: Bytes) -> Floats:
    return halves(blocks[:, :2]) * (_five_bits(blocks[:, 2:]).astype(np.float32) - np.float32(16))


def q5_1(blocks: Bytes) -> Floats:
    return halves(blocks[:, :2]) * _five_bits(blocks[:, 4:]) + halves(blocks[:, 2:4])


def _five_bits(packed: Bytes) -> Bytes:
    # Four bytes of fifth bits, then the low four bits of each code.
    return join(unpack(packed[:, 4:], 4, 16), unpack(packed[:, :4], 1, 1), 4)


def q8_0(blocks: Bytes) -> Floats:
    return halves(blocks[:, :2]) * blocks[:, 2:].view(np.int8)


def q8_1(blocks: Bytes) -> Floats:
    # Bytes 2 and 3 hold the scaled sum of the codes, which only dot products want.
    return halves(blocks[:, :2]) * blocks[:, 4:].view(np.int8)


def tq1_0(blocks: Bytes) -> Floats:
    # 32 bytes of five trits, 16 bytes of five, 4 bytes of four.
    codes = (_trits(blocks[:, :32], 5), _trits(blocks[:, 32:48], 5), _trits(blocks[:, 48:52], 4))
    return halves(blocks[:, 52:]) * np.concatenate(codes, axis=1)


def _trits(packed: Bytes, n_trits: int) -> Floats:
    # A byte is a fraction of 256 in base 3: multiplying (modulo 256) by 3^k brings trit k to the front.
    front = packed[:, None, :] * np.array([3**k for k in range(n_trits)], np.uint8)[:, None]
    trits = front.astype(np.uint16) * 3 >> 8
    return trits.reshape(len(packed), -1).astype(np.float32) - np.float32(1)


def tq2_0(blocks: Bytes) -> Floats:
    return halves(blocks[:, 64:]) * (unpack(blocks[:, :64], 2, 32).astype(np.float32) - np.float32(1))
