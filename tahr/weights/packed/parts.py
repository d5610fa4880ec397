"""Parts of quantised matrices in checkpoints: codes, scales and zero points, each checked against the others."""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tahr.errors import CorruptFile
from tahr.weights.packed.groups import Bytes, Floats, nibbles
from tahr.weights.tensor import HostTensor

Parts: TypeAlias = Mapping[str, HostTensor]  # the tensors of one matrix, by the last word of their names

Words: TypeAlias = NDArray[np.int32]

FLOATS = ("F32", "F16", "BF16")


def damaged(name: str, what: str) -> CorruptFile:
    return CorruptFile(f"The quantised matrix {name} is damaged: {what}. Fetch the model again.")


def words(
    name: str,
    tensor: HostTensor,
    shape: tuple[int, ...] | None = None,
    n_axes: int = 2,
) -> Words:
    """32-bit words of that shape, or of any that has so many axes."""
    if tensor.format.name not in ("I32", "U32"):
        raise damaged(name, f"{tensor.name} is stored as {tensor.format.name}, not as 32-bit integers")
    if len(tensor.shape) != n_axes or 0 in tensor.shape or (shape is not None and tensor.shape != shape):
        raise damaged(name, f"{tensor.name} has the shape {list(tensor.shape)}, which does not fit the other parts")
    return tensor.data.view("<i4").reshape(tensor.shape)


def numbers(name: str, tensor: HostTensor, n_axes: int = 2) -> Floats:
    """Scales as f32."""
    if tensor.format.name not in FLOATS or len(tensor.shape) != n_axes or 0 in tensor.shape:
        raise damaged(name, f"{tensor.name} of {tensor.format.name} {list(tensor.shape)} holds no scales")
    return tensor.dense()


def needed(name: str, parts: Parts, *kinds: str) -> list[HostTensor]:
    for kind in kinds:
        if kind not in parts:
            raise damaged(name, f"its {kind} is missing")
    return [parts[kind] for kind in kinds]


def check_groups(name: str, n_cols: int, n_groups: int, group_size: int | None = None) -> None:
    """`group_size` is the configuration's, if it has one; -1 means one group for the whole row."""
    wanted = n_groups if group_size is None else 1 if group_size == -1 else -(-n_cols // group_size)
    if n_groups != wanted or n_cols % n_groups:
        raise damaged(name, f"its {n_cols} columns are not in {n_groups} groups as its scales and configuration say")


def unpacked(packed: Words, n_bits: int) -> Bytes:
    """Codes of words, the lowest bits first, along the last axis."""
    return packed.view(np.uint8) if n_bits == 8 else nibbles(packed.view(np.uint8))


def unless_middle(zeros: Bytes, n_bits: int) -> Bytes | None:
    """Zero points, or None where all are the middle code: a symmetric matrix."""
    return None if bool((zeros == 1 << (n_bits - 1)).all()) else zeros


def act_order(name: str, index: HostTensor | None, n_cols: int, n_groups: int) -> NDArray[np.int32] | None:
    """The group of every column, or None where they are in order; zeros throughout mean that too."""
    if index is None or index.shape == (0,):
        return None
    found = words(name, index, (n_cols,), n_axes=1)
    if int(found.min()) < 0 or int(found.max()) >= n_groups:
        raise damaged(name, f"{index.name} names groups beyond the {n_groups} there are")
    in_order = np.arange(n_cols, dtype=np.int32) // (n_cols // n_groups)
    return None if not found.any() or np.array_equal(found, in_order) else found


def two_sizes(name: str, tensor: HostTensor) -> tuple[int, int]:
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise damaged(name, f"{tensor.name} has the shape {list(tensor.shape)} and is no matrix")
    return tensor.shape[0], tensor.shape[1]


def scales_by_row(name: str, tensor: HostTensor, n_rows: int) -> Floats:
    """A scale for the matrix, or for every row, or for every group of a row: [n_rows, n_groups]."""
    if tensor.n_values == 1:
        return np.full((n_rows, 1), float(numbers(name, tensor, len(tensor.shape)).reshape(-1)[0]), np.float32)
    found = numbers(name, tensor, len(tensor.shape))
    if found.ndim > 2 or len(found) != n_rows:
        raise damaged(name, f"{list(tensor.shape)} scales do not fit {n_rows} rows")
    return found.reshape(n_rows, -1)
