"""Matrices of GPTQ checkpoints."""

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
    unless_middle,
    unpacked,
    words,
)
from tahr.weights.tensor import HostTensor


def gptq(name: str, parts: Parts, n_bits: int, group_size: int, zero_offset: int) -> HostTensor:
    """qweight [n_cols / n, n_rows] has n codes to a word along the columns; qzeros [n_groups, n_rows / n] and scales
    [n_groups, n_rows]. Zero points are stored less `zero_offset`: 1 in files of the first version."""
    stored, zeros, scales = needed(name, parts, "qweight", "qzeros", "scales")
    n_per_word = 32 // n_bits
    codes = words(name, stored)
    by_group = numbers(name, scales)
    n_cols = codes.shape[0] * n_per_word
    n_rows = codes.shape[1]
    n_groups = len(by_group)
    check_groups(name, n_cols, n_groups, group_size)
    if n_rows % n_per_word or by_group.shape[1] != n_rows:
        raise damaged(name, f"{list(by_group.shape)} scales do not fit {n_rows} rows")
    found = words(name, zeros, (n_groups, n_rows // n_per_word))
    points = unpacked(np.ascontiguousarray(found), n_bits).T + np.uint8(zero_offset) & np.uint8((1 << n_bits) - 1)
    group_of = act_order(name, parts.get("g_idx"), n_cols, n_groups)
    return int_blocks(IntGroups(name, n_bits, codes.T, by_group.T, unless_middle(points, n_bits), group_of))
