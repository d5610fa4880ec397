"""Quantisers of four-bit codes that index sixteen fixed values: IQ4 and MXFP4."""

import numpy as np

from tahr.weights.dequantise.bits import Bytes, Floats
from tahr.weights.dequantise.table import FP4_VALUES, IQ4_VALUES
from tahr.weights.quantise.bits import blocks_of, columns, half_bytes, inverse, pack, rounded_half, rows
from tahr.weights.quantise.fit import fit_scale
from tahr.weights.quantise.k_formats import signed_scales

REACH = IQ4_VALUES[0] + np.arange(-7, 8)  # target codes for a group's largest value
# The borders between IQ4 values are whole or half numbers, so doubled and rounded down a number finds its code here.
IQ4_CODES = np.searchsorted((IQ4_VALUES[1:] + IQ4_VALUES[:-1]) / 2, np.arange(-256, 256) / 2, side="right").astype(
    np.uint8
)


def iq4_nl(blocks: Floats) -> Bytes:
    x = columns(blocks, 32)
    scale = rounded_half(fit_scale(x, REACH, _nearest))
    codes = rows(_iq4_codes(x * inverse(scale)), 32)
    return blocks_of(half_bytes(scale[:, None]), pack(codes, 4, 16))


def iq4_xs(blocks: Floats) -> Bytes:
    x = columns(blocks, 32)
    scales, d = signed_scales(fit_scale(x, REACH, _nearest).reshape(-1, 8), 32)
    codes = rows(_iq4_codes(x * inverse((d * scales).reshape(-1))), 256)
    heads = (scales + 32).astype(np.uint8)
    return blocks_of(half_bytes(d), pack(heads >> 4, 2, 1), pack(heads & 0x0F, 4, 1), pack(codes, 4, 16))


def _iq4_codes(scaled: Floats) -> Bytes:
    found: Bytes = IQ4_CODES[np.clip(np.floor(scaled * 2), -256, 255).astype(np.int16) + 256]
    return found


def _nearest(scaled: Floats) -> Floats:
    found: Floats = IQ4_VALUES[_iq4_codes(scaled)]
    return found


def mxfp4(blocks: Floats) -> Bytes:
    top = np.abs(blocks).max(axis=1, keepdims=True)
    # A power of two that brings the largest value to between 4 and 8; values above 6 become 6.
    exponent = np.clip(np.frexp(top)[1] - 3 + 127, 0, 254) * (top > 0)
    halved = np.ldexp(blocks, 1 - (exponent - 127))  # the table's unit: half the scale
    codes = np.abs(halved[:, :, None] - FP4_VALUES).argmin(axis=2)
    return blocks_of(exponent.astype(np.uint8), pack(codes.astype(np.uint8), 4, 16))
