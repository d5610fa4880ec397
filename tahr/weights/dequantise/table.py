"""Dequantisers of four-bit codes that index sixteen fixed values: IQ4 and the FP4 formats."""

import numpy as np

from tahr.weights.dequantise.bits import Bytes, Floats, halves, join, unpack

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
# Twice the numbers of a 2-bit exponent and a 1-bit mantissa, so that they are whole; the scales are halved instead.
FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def iq4_nl(blocks: Bytes) -> Floats:
    return halves(blocks[:, :2]) * IQ4_VALUES[unpack(blocks[:, 2:], 4, 16)]


def iq4_xs(blocks: Bytes) -> Floats:
    # Eight 6-bit scales: high bits in two bytes, low bits in four.
    scales = join(unpack(blocks[:, 4:8], 4, 1), unpack(blocks[:, 2:4], 2, 1), 4)
    scale = halves(blocks[:, :2]) * (scales.astype(np.float32) - np.float32(32))
    values = IQ4_VALUES[unpack(blocks[:, 8:], 4, 16)].reshape(len(blocks), 8, 32)
    return (scale[:, :, None] * values).reshape(len(blocks), -1)


def mxfp4(blocks: Bytes) -> Floats:
    scale = np.ldexp(np.float32(0.5), blocks[:, :1].astype(np.int32) - 127)
    return scale * FP4_VALUES[unpack(blocks[:, 1:], 4, 16)]


def nvfp4(blocks: Bytes) -> Floats:
    scale = NVFP4_SCALES[blocks[:, :4]]
    values = FP4_VALUES[unpack(blocks[:, 4:], 4, 8)].reshape(len(blocks), 4, 16)
    return (scale[:, :, None] * values).reshape(len(blocks), -1)


def _nvfp4_scales() -> Floats:
    """Half of each number of a 4-bit exponent and a 3-bit mantissa; 0x7f is zero, and the top bit means nothing."""
    byte = np.arange(256)
    exponent = byte >> 3 & 0x0F
    mantissa = byte & 0x07
    normal = exponent > 0
    scale: Floats = np.ldexp((mantissa + 8 * normal).astype(np.float32), np.maximum(exponent, 1) - 11)
    scale[0x7F] = 0
    return scale


NVFP4_SCALES = _nvfp4_scales()
