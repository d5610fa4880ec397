"""Matrices of 8-bit floats with scales."""

import numpy as np

from tahr.weights.packed.float_blocks import float_blocks
from tahr.weights.packed.groups import Floats
from tahr.weights.packed.parts import Parts, damaged, needed, numbers, scales_by_row, two_sizes
from tahr.weights.tensor import HostTensor


def fp8(name: str, parts: Parts, block: tuple[int, int] | None) -> HostTensor:
    """weight [n_rows, n_cols] in e4m3, and a scale for the matrix, for every row, or for every `block` of it."""
    kind = "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"
    stored, scales = needed(name, parts, "weight", kind)
    n_rows, n_cols = two_sizes(name, stored)
    if block is None or scales.n_values == 1:
        by_row = scales_by_row(name, scales, n_rows)
        group = n_cols
        if by_row.shape[1] != 1:
            raise damaged(name, f"{list(scales.shape)} scales are neither one for the matrix nor one for each row")
    else:
        by_row = scales_by_block(name, scales, (n_rows, n_cols), block)
        group = block[1]
    if not bool(np.isfinite(by_row).all()):
        raise damaged(name, f"{scales.name} holds scales that are no numbers")
    return float_blocks(name, stored.data.reshape(n_rows, n_cols), by_row, group)


def scales_by_block(name: str, tensor: HostTensor, shape: tuple[int, int], block: tuple[int, int]) -> Floats:
    """Scales of blocks of a matrix, for every row: [n_rows, blocks in a row]."""
    found = numbers(name, tensor)
    wanted = tuple(-(-size // step) for size, step in zip(shape, block, strict=True))
    if found.shape != wanted:
        raise damaged(name, f"it has {list(found.shape)} scales, and blocks of {block[0]} x {block[1]} need {wanted}")
    return found[np.arange(shape[0]) // block[0]]
