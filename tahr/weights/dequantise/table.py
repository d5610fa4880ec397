"""Dequantisers of four-bit codes that index sixteen fixed values: IQ4 and the FP4 formats."""

import numpy as np

from tahr.weights.dequantise.bits import Bytes, Floats, halves, join, less, unpack

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
# Twice the numbers of a 2-bit exponent and a 1-bit mantissa, so that they are whole; the scales are halved instead.
FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def iq4_nl(blocks: Bytes) -> Floats:
    scale = halves(blocks[:, :2])
    codes = unpack(blocks[:, 2:], 4, 16)
    return scale * IQ4_VALUES[codes]


def iq4_xs(blocks: Bytes) -> Floats:
    # Eight 6-bit scales: high bits in two bytes, low bits in four.
    high = unpack(blocks[:, 2:4], 2, 1)
    low = unpack(blocks[:, 4:8], 4, 1)
    scales = join(low, high, 4)
    scale = halves(blocks[:, :2]) * less(scales, 32)
    codes = unpack(blocks[:, 8:], 4, 16)
    return _by_groups(scale, IQ4_VALUES[codes])


def mxfp4(blocks: Bytes) -> Floats:
    exponent = blocks[:, :1].astype(np.int32) - 127
    scale = np.ldexp(np.float32(0.5), exponent)
    codes = unpack(blocks[:, 1:], 4, 16)
    return scale * FP4_VALUES[codes]


def nvfp4(blocks: Bytes) -> Floats:
    scale = NVFP4_SCALES[blocks[:, :4]]
    codes = unpack(blocks[:, 4:], 4, 8)
    return _by_groups(scale, FP4_VALUES[codes])


def _by_groups(scale: Floats, values: Floats) -> Floats:
    """Values times the scale of their group."""
    groups = values.reshape(*scale.shape, -1)
    scaled: Floats = scale[:, :, None] * groups
    return scaled.reshape(len(scale), -1)


def _nvfp4_scales() -> Floats:
    """Half of each number of a 4-bit exponent and a 3-bit mantissa; 0x7f is zero, and the top bit means nothing."""
    byte = np.arange(256)
    exponent = byte >> 3 & 0x0F
    mantissa = byte & 0x07
    normal = exponent > 0
    whole = (mantissa + 8 * normal).astype(np.float32)
    power = np.maximum(exponent, 1) - 11
    scale: Floats = np.ldexp(whole, power)
    scale[0x7F] = 0
    return scale


NVFP4_SCALES = _nvfp4_scales()
