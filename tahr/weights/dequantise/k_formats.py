"""Dequantisers of the K family: blocks of 256 values in groups of 16 or 32, each with a small integer scale."""

import numpy as np

from tahr.weights.dequantise.bits import Bytes, Floats, halves, join, less, unpack, words


def q2_k(blocks: Bytes) -> Floats:
    scales = blocks[:, :16]
    codes = unpack(blocks[:, 16:80], 2, 32)
    scale = halves(blocks[:, 80:82]) * (scales & 0x0F)
    offset = halves(blocks[:, 82:84]) * (scales >> 4)
    return _scaled(scale, codes, offset)


def q3_k(blocks: Bytes) -> Floats:
    # Third bits come first and are inverted: a set bit means "do not subtract four".
    high = unpack(blocks[:, :32], 1, 32)
    low = unpack(blocks[:, 32:96], 2, 32)
    codes = join(low, high, 2)
    low_scales = unpack(blocks[:, 96:104], 4, 8)
    high_scales = unpack(blocks[:, 104:108], 2, 4)
    scales = join(low_scales, high_scales, 4)
    scale = halves(blocks[:, 108:110]) * less(scales, 32)
    return _scaled(scale, less(codes, 4))


def q4_k(blocks: Bytes) -> Floats:
    scale, offset = _scales_and_offsets(blocks)
    codes = unpack(blocks[:, 16:144], 4, 32)
    return _scaled(scale, codes, offset)


def q5_k(blocks: Bytes) -> Floats:
    scale, offset = _scales_and_offsets(blocks)
    high = unpack(blocks[:, 16:48], 1, 32)
    low = unpack(blocks[:, 48:176], 4, 32)
    return _scaled(scale, join(low, high, 4), offset)


def q6_k(blocks: Bytes) -> Floats:
    low = unpack(blocks[:, :128], 4, 64)
    high = unpack(blocks[:, 128:192], 2, 32)
    codes = join(low, high, 4)
    scale = halves(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8)
    return _scaled(scale, less(codes, 32))


def q8_k(blocks: Bytes) -> Floats:
    # After the codes come sums of 16 codes each, which only dot products want.
    scale = words(blocks[:, :4], "<f4").astype(np.float32)
    codes = blocks[:, 4:260].view(np.int8)
    return scale * codes


def _scaled(scale: Floats, codes: Bytes | Floats, offset: Floats | None = None) -> Floats:
    """Each group's codes times its scale, less its offset; the number of scales says how long a group is."""
    values = scale[:, :, None] * codes.reshape(*scale.shape, -1)
    if offset is not None:
        values -= offset[:, :, None]
    return values.reshape(len(codes), -1)


def _scales_and_offsets(blocks: Bytes) -> tuple[Floats, Floats]:
    """The head Q4_K and Q5_K share: two f16, then eight 6-bit scales and eight 6-bit offsets in twelve bytes."""
    first = blocks[:, 4:8]
    second = blocks[:, 8:12]
    third = blocks[:, 12:16]
    # The last four of each keep their low bits in the third word and their high bits on top of the first four.
    late_scales = (third & 0x0F) | first >> 6 << 4
    late_offsets = third >> 4 | second >> 6 << 4
    scales = np.concatenate([first & 0x3F, late_scales], axis=1)
    offsets = np.concatenate([second & 0x3F, late_offsets], axis=1)
    scale = halves(blocks[:, :2])
    offset = halves(blocks[:, 2:4])
    return scale * scales, offset * offsets
