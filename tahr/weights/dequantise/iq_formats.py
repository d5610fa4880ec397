"""Dequantisers of IQ1, IQ2 and IQ3: blocks of 256 values spelt with codewords, which have signs and group scales.

The order of the multiplications matters: it makes the rounding equal to that of every other reader of these formats.
"""

import numpy as np
from numpy.typing import NDArray

from tahr.weights.dequantise.bits import Bytes, Floats, halves, signs, unpack, words
from tahr.weights.dequantise.codebooks import codewords
from tahr.weights.dequantise.iq_fields import odd, with_high_bits

QUARTER = np.float32(0.25)

HALF = np.float32(0.5)


def iq2_xxs(blocks: Bytes) -> Floats:
    pairs = blocks[:, 2:].reshape(len(blocks), 8, 8)
    scale, sign = _scale_and_signs(pairs[:, :, 4:])
    whole = halves(blocks[:, :2])
    return _spell(whole * scale * QUARTER, "IQ2_XXS", pairs[:, :, :4], sign)


def iq2_xs(blocks: Bytes) -> Floats:
    pairs = words(blocks[:, 2:66], "<u2").astype(np.uint16)
    scale = _quarter_scales(blocks[:, :2], blocks[:, 66:])
    sign = _seven_signs(pairs >> 9)
    return _spell(scale, "IQ2_XS", pairs & 0x1FF, sign)


def iq2_s(blocks: Bytes) -> Floats:
    high = unpack(blocks[:, 66:74], 2, 1)
    index = with_high_bits(blocks[:, 2:34], high)
    scale = _quarter_scales(blocks[:, :2], blocks[:, 74:])
    sign = signs(unpack(blocks[:, 34:66], 1, 1))
    return _spell(scale, "IQ2_S", index, sign)


def iq3_xxs(blocks: Bytes) -> Floats:
    groups = blocks[:, 66:].reshape(len(blocks), 8, 4)
    scale, sign = _scale_and_signs(groups)
    whole = halves(blocks[:, :2])
    return _spell(whole * scale * HALF, "IQ3_XXS", blocks[:, 2:66], sign)


def iq3_s(blocks: Bytes) -> Floats:
    high = unpack(blocks[:, 66:74], 1, 1)
    index = with_high_bits(blocks[:, 2:66], high)
    scales = unpack(blocks[:, 106:], 4, 1)
    scale = halves(blocks[:, :2]) * odd(scales)
    sign = signs(unpack(blocks[:, 74:106], 1, 1))
    return _spell(scale, "IQ3_S", index, sign)


def _spell(scale: Floats, book: str, index: NDArray[np.integer], sign: Floats) -> Floats:
    """Codewords times the scale of their group times their signs."""
    values = codewords(book)[index].astype(np.float32)
    groups = values.reshape(*scale.shape, -1)
    scaled: Floats = scale[:, :, None] * groups
    return scaled.reshape(len(scale), -1) * sign.reshape(len(scale), -1)


def _scale_and_signs(packed: Bytes) -> tuple[Floats, Floats]:
    """A 32-bit word per group of 32 values: four 7-bit sign codes below a 4-bit scale, counted from one half."""
    word = words(packed, "<u4").astype(np.uint32)
    places = np.array([0, 7, 14, 21], np.uint32)
    sign = _seven_signs(word >> places & 0x7F)
    scale = (word[:, :, 0] >> 28).astype(np.float32)
    return HALF + scale, sign


def _seven_signs(code: NDArray[np.integer]) -> Floats:
    """Eight signs from seven bits: the number of minuses is even, which gives the eighth."""
    bits = (code[..., None] >> np.arange(8) & 1).astype(np.uint8)
    bits[..., 7] = bits[..., :7].sum(axis=-1) & 1
    return signs(bits)


def _quarter_scales(whole: Bytes, packed: Bytes) -> Floats:
    scales = unpack(packed, 4, 1)
    return halves(whole) * (HALF + scales) * QUARTER
