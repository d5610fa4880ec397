"""Dequantisers of IQ1: ternary codewords, moved a little up or down."""

import numpy as np
from numpy.typing import NDArray

from tahr.weights.dequantise.bits import Bytes, Floats, halves, signs, unpack, words
from tahr.weights.dequantise.codebooks import codewords
from tahr.weights.dequantise.iq_fields import odd, with_high_bits

IQ1_SHIFT = np.float32(0.125)


def iq1_s(blocks: Bytes) -> Floats:
    # Each 16-bit word holds four 3-bit tops of indices, a 3-bit scale and the sign of the shift.
    high = words(blocks[:, 34:], "<u2").astype(np.uint16)
    index = with_high_bits(blocks[:, 2:34], four_threes(high))
    scales = high >> 12 & 7
    scale = halves(blocks[:, :2]) * odd(scales)
    sign_bits = (high >> 15).astype(np.uint8)
    return _shifted(scale, index, IQ1_SHIFT * signs(sign_bits))


def iq1_m(blocks: Bytes) -> Floats:
    # The f16 scale of the block is spread over the top four bits of the four scale words.
    packed = words(blocks[:, 48:], "<u2").astype(np.uint16)
    places = np.array([12, 8, 4, 0], np.uint16)
    parts = (packed & 0xF000) >> places
    joined = np.bitwise_or.reduce(parts, axis=1, keepdims=True)
    whole = joined.view(np.float16).astype(np.float32)
    high = unpack(blocks[:, 32:48], 4, 1)
    index = with_high_bits(blocks[:, :32], high & 7)
    scale = whole * odd(four_threes(packed))
    sign_bits = high >> np.uint8(3)
    return _shifted(scale, index, IQ1_SHIFT * signs(sign_bits))


def _shifted(scale: Floats, index: NDArray[np.integer], shift: Floats) -> Floats:
    """IQ1's ternary codewords, moved a little up or down, times the scale of their group."""
    values = codewords("IQ1_S")[index].astype(np.float32)
    shifted = values.reshape(*shift.shape, -1) + shift[:, :, None]
    groups = shifted.reshape(*scale.shape, -1)
    scaled: Floats = scale[:, :, None] * groups
    return scaled.reshape(len(scale), -1)


def four_threes(word: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """The four lowest 3-bit fields of each word."""
    places = np.array([0, 3, 6, 9], np.uint16)
    fields = word[:, :, None] >> places & np.uint16(7)
    return fields.reshape(len(word), -1)
