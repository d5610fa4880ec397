"""How quantised checkpoints lay out codes, scales and zero points: GPTQ, AWQ and compressed-tensors.

Every size is checked against the others before anything is made of it.
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tahr.errors import CorruptFile
from tahr.weights.groups import Bytes, Floats, IntGroups, float_blocks, int_blocks, nibbles
from tahr.weights.tensor import HostTensor

Parts: TypeAlias = Mapping[str, HostTensor]  # the tensors of one matrix, by the last word of their names
Words: TypeAlias = NDArray[np.int32]

FLOATS = ("F32", "F16", "BF16")
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each four bits of a word, from the bottom


def damaged(name: str, what: str) -> CorruptFile:
    return CorruptFile(f"The quantised matrix {name} is damaged: {what}. Fetch the model again.")


def words(name: str, tensor: HostTensor, shape: tuple[int, ...] | None = None, n_axes: int = 2) -> Words:
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


# ---- GPTQ -------------------------------------------------------------------------------------------------------


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


# ---- AWQ --------------------------------------------------------------------------------------------------------


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


# ---- compressed-tensors -----------------------------------------------------------------------------------------


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


# ---- 8-bit floats -----------------------------------------------------------------------------------------------


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
