"""Dequantisers of IQ1, IQ2 and IQ3: blocks of 256 values spelt with codewords, which have signs and group scales.

The order of the multiplications matters: it makes the rounding equal to that of every other reader of these formats.
"""

import numpy as np
from numpy.typing import NDArray

from tahr.weights.dequantise.bits import Bytes, Floats, halves, signs, unpack, words
from tahr.weights.dequantise.codebooks import codewords

IQ1_SHIFT = np.float32(0.125)


def iq2_xxs(blocks: Bytes) -> Floats:
    pairs = blocks[:, 2:].reshape(len(blocks), 8, 8)
    scale, sign = _scale_and_signs(pairs[:, :, 4:])
    scale = halves(blocks[:, :2]) * scale * np.float32(0.25)
    return _spell(scale, "IQ2_XXS", pairs[:, :, :4], sign)


def iq2_xs(blocks: Bytes) -> Floats:
    pairs = words(blocks[:, 2:66], "<u2").astype(np.uint16)
    scale = _quarter_scales(blocks[:, :2], blocks[:, 66:])
    return _spell(scale, "IQ2_XS", pairs & 0x1FF, _seven_signs(pairs >> 9))


def iq2_s(blocks: Bytes) -> Floats:
    index = blocks[:, 2:34] | unpack(blocks[:, 66:74], 2, 1).astype(np.uint16) << 8
    scale = _quarter_scales(blocks[:, :2], blocks[:, 74:])
    return _spell(scale, "IQ2_S", index, signs(unpack(blocks[:, 34:66], 1, 1)))


def iq3_xxs(blocks: Bytes) -> Floats:
    scale, sign = _scale_and_signs(blocks[:, 66:].reshape(len(blocks), 8, 4))
    scale = halves(blocks[:, :2]) * scale * np.float32(0.5)
    return _spell(scale, "IQ3_XXS", blocks[:, 2:66], sign)


def iq3_s(blocks: Bytes) -> Floats:
    index = blocks[:, 2:66] | unpack(blocks[:, 66:74], 1, 1).astype(np.uint16) << 8
    scale = halves(blocks[:, :2]) * (np.float32(1) + 2 * unpack(blocks[:, 106:], 4, 1))
    return _spell(scale, "IQ3_S", index, signs(unpack(blocks[:, 74:106], 1, 1)))


def iq1_s(blocks: Bytes) -> Floats:
    # Each 16-bit word holds four 3-bit tops of indices, a 3-bit scale and the sign of the shift.
    high = words(blocks[:, 34:], "<u2").astype(np.uint16)
    index = blocks[:, 2:34] | _four_threes(high) << 8
    scale = halves(blocks[:, :2]) * (np.float32(1) + 2 * (high >> 12 & 7))
    shift = IQ1_SHIFT * signs((high >> 15).astype(np.uint8))
    return _shifted(scale, index, shift)


def iq1_m(blocks: Bytes) -> Floats:
    # The f16 scale of the block is spread over the top four bits of the four scale words.
    packed = words(blocks[:, 48:], "<u2").astype(np.uint16)
    top = (packed & 0xF000) >> np.array([12, 8, 4, 0], np.uint16)
    whole = np.bitwise_or.reduce(top, axis=1, keepdims=True).view(np.float16).astype(np.float32)
    high = unpack(blocks[:, 32:48], 4, 1)
    index = blocks[:, :32] | (high & 7).astype(np.uint16) << 8
    scale = whole * (np.float32(1) + 2 * _four_threes(packed))
    return _shifted(scale, index, IQ1_SHIFT * signs(high >> np.uint8(3)))


def _spell(scale: Floats, book: str, index: NDArray[np.integer], sign: Floats) -> Floats:
    """Codewords times the scale of their group times their signs."""
    values: Floats = codewords(book)[index].astype(np.float32).reshape(*scale.shape, -1)
    return (scale[:, :, None] * values).reshape(len(scale), -1) * sign.reshape(len(scale), -1)


def _shifted(scale: Floats, index: NDArray[np.integer], shift: Floats) -> Floats:
    """IQ1's ternary codewords, moved a little up or down, times the scale of their group."""
    values: Floats = codewords("IQ1_S")[index].astype(np.float32).reshape(*shift.shape, -1) + shift[:, :, None]
    return (scale[:, :, None] * values.reshape(*scale.shape, -1)).reshape(len(scale), -1)


def _scale_and_signs(packed: Bytes) -> tuple[Floats, Floats]:
    """A 32-bit word per group of 32 values: four 7-bit sign codes below a 4-bit scale, counted from one half."""
    word = words(packed, "<u4").astype(np.uint32)
    sign = _seven_signs(word >> np.array([0, 7, 14, 21], np.uint32) & 0x7F)
    return np.float32(0.5) + (word[:, :, 0] >> 28).astype(np.float32), sign


def _seven_signs(code: NDArray[np.integer]) -> Floats:
    """Eight signs from seven bits: the number of minuses is even, which gives the eighth."""
    bits = (code[..., None] >> np.arange(8) & 1).astype(np.uint8)
    bits[..., 7] = bits[..., :7].sum(axis=-1) & 1
    return signs(bits)


def _quarter_scales(whole: Bytes, packed: Bytes) -> Floats:
    return halves(whole) * (np.float32(0.5) + unpack(packed, 4, 1)) * np.float32(0.25)


def _four_threes(word: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """The four lowest 3-bit fields of each word."""
    return (word[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & np.uint16(7)).reshape(len(word), -1)
