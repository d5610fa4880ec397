"""Matrices of AWQ checkpoints."""

import numpy as np

from tahr.weights.packed.blocks import int_blocks
from tahr.weights.packed.groups import Bytes, IntGroups, nibbles
from tahr.weights.packed.parts import Parts, Words, check_groups, damaged, needed, numbers, words
from tahr.weights.tensor import HostTensor

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each four bits of a word, from the bottom


def awq(name: str, parts: Parts, group_size: int) -> HostTensor:
    """qweight [n_cols, n_rows / 8] and qzeros [n_groups, n_rows / 8] have eight rows to a word, in AWQ_COLUMNS' order;
    scales [n_groups, n_rows]."""
    stored, scales = needed(name, parts, "qweight", "scales")
    codes = words(name, stored)
    by_group = numbers(name, scales)
    (n_cols, n_words) = codes.shape
    n_groups = len(by_group)
    check_groups(name, n_cols, n_groups, group_size)
    if n_cols % 2:
        raise damaged(name, f"it has {n_cols} columns, not an even number")
    if by_group.shape[1] != 8 * n_words:
        raise damaged(name, f"{list(by_group.shape)} scales do not fit {8 * n_words} rows")
    points = None
    if "qzeros" in parts:
        points = awq_rows(words(name, parts["qzeros"], (n_groups, n_words))).T
    return int_blocks(IntGroups(name, 4, awq_codes(codes), by_group.T, points))


def awq_rows(packed: Words) -> Bytes:
    """Codes [n, 8 * n_words] of words [n, n_words]."""
    by_place = nibbles(np.ascontiguousarray(packed).view(np.uint8)).reshape(len(packed), -1, 8)
    ordered = np.empty_like(by_place)
    ordered[:, :, AWQ_COLUMNS] = by_place
    return ordered.reshape(len(packed), -1)


def awq_codes(packed: Words) -> Bytes:
    """Codes of words [n_cols, n_words] by rows: bytes [8 * n_words, n_cols / 2]."""
    n_cols, n_words = packed.shape
    stored = np.ascontiguousarray(packed).view(np.uint8).reshape(n_cols // 2, 2, n_words, 4)
    even = stored[:, 0]
    odd = stored[:, 1]
    rows = np.empty((n_words, 8, n_cols // 2), np.uint8)
    for byte in range(4):
        low = AWQ_COLUMNS[2 * byte]
        high = AWQ_COLUMNS[2 * byte + 1]
        first = even[:, :, byte]
        second = odd[:, :, byte]
        rows[:, low] = ((first & 15) | (second << 4)).T
        rows[:, high] = ((first >> 4) | (second & 0xF0)).T
    return rows.reshape(8 * n_words, -1)
