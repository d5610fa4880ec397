"""Integer matrices of compressed-tensors checkpoints."""

import numpy as np

from tahr.weights.packed.blocks import int_blocks
from tahr.weights.packed.groups import IntGroups
from tahr.weights.packed.parts import (
    Parts,
    act_order,
    check_groups,
    damaged,
    needed,
    numbers,
    scales_by_row,
    two_sizes,
    unless_middle,
    unpacked,
    words,
)
from tahr.weights.tensor import HostTensor


def pack_quantized(name: str, parts: Parts) -> HostTensor:
    """weight_packed [n_rows, n_cols / n] of codes moved up by the middle one, weight_scale [n_rows, n_groups], and
    where they are not symmetric weight_zero_point [n_rows / n, n_groups], packed along the rows."""
    stored, scales, shape = needed(name, parts, "weight_packed", "weight_scale", "weight_shape")
    codes = words(name, stored)
    by_row = numbers(name, scales)
    n_rows, n_cols = stated_shape(name, shape)
    n_bits = 32 * codes.shape[1] // n_cols if n_cols else 0
    if n_bits not in (4, 8) or codes.shape != (n_rows, n_cols * n_bits // 32) or len(by_row) != n_rows:
        raise damaged(name, f"{list(codes.shape)} words do not fit a matrix of {n_rows} x {n_cols} in 4 or 8 bits")
    n_groups = by_row.shape[1]
    check_groups(name, n_cols, n_groups)
    zeros = parts.get("weight_zero_point")
    points = None
    if zeros is not None:
        n_words = -(-n_rows * n_bits // 32)
        found = words(name, zeros, (n_words, n_groups))
        points = unpacked(np.ascontiguousarray(found.T), n_bits)[:, :n_rows].T
    group_of = act_order(name, parts.get("weight_g_idx"), n_cols, n_groups)
    return int_blocks(IntGroups(name, n_bits, codes, by_row, points, group_of))


def stated_shape(name: str, tensor: HostTensor) -> tuple[int, int]:
    if tensor.format.name not in ("I32", "I64") or tensor.shape != (2,):
        raise damaged(name, f"{tensor.name} does not hold two sizes")
    n_rows, n_cols = tensor.data.view("<i4" if tensor.format.name == "I32" else "<i8").tolist()
    return n_rows, n_cols


def int_quantized(name: str, parts: Parts) -> HostTensor:
    """weight [n_rows, n_cols] of signed bytes, weight_scale [n_rows, n_groups], perhaps weight_zero_point likewise."""
    stored, scales = needed(name, parts, "weight", "weight_scale")
    n_rows, n_cols = two_sizes(name, stored)
    by_row = scales_by_row(name, scales, n_rows)
    check_groups(name, n_cols, by_row.shape[1])
    zeros = parts.get("weight_zero_point")
    points = None
    if zeros is not None:
        if zeros.format.name != "I8" or zeros.data.size != by_row.size:
            raise damaged(name, f"{zeros.name} does not have a zero point for every scale")
        points = unless_middle(zeros.data.reshape(by_row.shape) ^ np.uint8(0x80), 8)
    codes = stored.data.reshape(n_rows, n_cols) ^ np.uint8(0x80)
    return int_blocks(IntGroups(name, 8, codes, by_row, points))
