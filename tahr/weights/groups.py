"""Matrices of integers or 8-bit floats with a scale for every group of columns, as blocks that backends multiply.

GPTQ, AWQ and compressed-tensors checkpoints keep codes, scales and zero points apart. Groups are 32, 64, 128 columns or
the whole row; our blocks have 32 (128 of 8-bit floats), so a group's scale is repeated in each of its blocks.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tahr.errors import CorruptFile
from tahr.weights.formats import FORMATS, Format
from tahr.weights.tensor import HostTensor

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]

# columns
BLOCK = 32
FLOAT_BLOCK = 128
VALUES_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class IntGroups:
    """A matrix of unsigned codes: value = (code - zero) * scale.

    `codes` is [n_rows, n_cols] of eight bits, or [n_rows, n_cols / 2] of four, even columns in the lower halves; as
    bytes, or four of them in a word.
    `scales` and `zeros` are [n_rows, n_groups]; no zeros means the middle code. `group_of` names the group of every
    column where columns are not in the order of their groups (act-order).
    """

    name: str
    n_bits: int
    codes: Bytes | NDArray[np.int32]
    scales: Floats
    zeros: Bytes | None = None
    group_of: NDArray[np.int32] | None = None

    @property
    def n_cols(self) -> int:
        return int(self.codes.shape[1] * self.codes.itemsize * 8 // self.n_bits)

    @property
    def middle(self) -> int:
        return 1 << (self.n_bits - 1)

    def bytes_of(self, rows: slice) -> Bytes:
        """The codes of some rows as bytes."""
        return np.ascontiguousarray(self.codes[rows]).view(np.uint8)


def int_blocks(matrix: IntGroups) -> HostTensor:
    """The matrix as Q4_0 or Q8_0 blocks, which are exact, or Q4_1; dense in f16 where no block format can hold it."""
    if not fits_f16(matrix.scales * (1 << matrix.n_bits)):
        raise CorruptFile(f"The scales of {matrix.name} are no numbers that fit an f16; fetch the model again.")
    in_blocks = matrix.group_of is None and matrix.n_cols // matrix.scales.shape[1] % BLOCK == 0
    if in_blocks and matrix.n_bits == 4:
        return four_bit_blocks(matrix)
    if in_blocks and matrix.zeros is None:
        return eight_bit_blocks(matrix)
    return dense_groups(matrix)


def fits_f16(values: Floats) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.astype(np.float16)).all())


def four_bit_blocks(matrix: IntGroups) -> HostTensor:
    form = FORMATS["Q4_0" if matrix.zeros is None else "Q4_1"]
    blocks = empty_blocks(matrix, form)
    blocks[:, :, :2] = per_block(matrix, matrix.scales)
    if matrix.zeros is not None:
        blocks[:, :, 2:4] = per_block(matrix, -matrix.scales * matrix.zeros)

    def fill(rows: slice) -> None:
        halves = matrix.bytes_of(rows).reshape(-1, blocks.shape[1], 2, 8)
        # bytes of the first and of the last 16 columns of each block
        first = halves[:, :, 0]
        last = halves[:, :, 1]
        body = blocks[rows, :, form.block_bytes - 16 :]
        body[:, :, ::2] = (first & 15) | (last << 4)
        body[:, :, 1::2] = (first >> 4) | (last & 0xF0)

    by_rows(matrix, fill)
    return as_tensor(matrix, form, blocks)


def eight_bit_blocks(matrix: IntGroups) -> HostTensor:
    form = FORMATS["Q8_0"]
    blocks = empty_blocks(matrix, form)
    blocks[:, :, :2] = per_block(matrix, matrix.scales)

    def fill(rows: slice) -> None:
        codes = matrix.bytes_of(rows) ^ 0x80  # codes less 128, as signed bytes
        blocks[rows, :, 2:] = codes.reshape(-1, blocks.shape[1], BLOCK)

    by_rows(matrix, fill)
    return as_tensor(matrix, form, blocks)


def dense_groups(matrix: IntGroups) -> HostTensor:
    n_rows = len(matrix.codes)
    n_cols = matrix.n_cols
    n_groups = matrix.scales.shape[1]
    group_of = np.arange(n_cols) * n_groups // n_cols if matrix.group_of is None else matrix.group_of
    values = np.empty((n_rows, n_cols), np.float16)

    def fill(rows: slice) -> None:
        codes = matrix.bytes_of(rows) if matrix.n_bits == 8 else nibbles(matrix.bytes_of(rows))
        zeros = np.int32(matrix.middle) if matrix.zeros is None else matrix.zeros[rows][:, group_of].astype(np.int32)
        values[rows] = (codes - zeros) * matrix.scales[rows][:, group_of]

    by_rows(matrix, fill)
    return as_tensor(matrix, FORMATS["F16"], values)


def by_rows(matrix: IntGroups, fill: Callable[[slice], None]) -> None:
    """Fill some rows after others, on all cores: a few that stay in a core's cache are twice as fast as all at once."""
    n_rows = len(matrix.codes)
    n_at_once = max(1, VALUES_AT_ONCE // matrix.n_cols)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, (slice(at, at + n_at_once) for at in range(0, n_rows, n_at_once))))


def nibbles(packed: Bytes) -> Bytes:
    """Codes of four bits, two to a byte, one by one."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def empty_blocks(matrix: IntGroups, form: Format) -> Bytes:
    return np.empty((len(matrix.codes), matrix.n_cols // form.block, form.block_bytes), np.uint8)


def per_block(matrix: IntGroups, numbers: Floats) -> Bytes:
    """Numbers [n_rows, n_groups] as the bytes of f16, for every block."""
    n_rows = len(numbers)
    n_blocks = matrix.n_cols // BLOCK
    repeated = np.repeat(numbers.astype("<f2"), n_blocks // numbers.shape[1], axis=1)
    return repeated.view(np.uint8).reshape(n_rows, n_blocks, 2)


def as_tensor(matrix: IntGroups, form: Format, values: NDArray[np.uint8] | NDArray[np.float16]) -> HostTensor:
    return HostTensor(matrix.name, form, (len(matrix.codes), matrix.n_cols), values.reshape(-1).view(np.uint8))


def float_blocks(name: str, codes: Bytes, scales: Floats, group: int) -> HostTensor:
    """e4m3 floats [n_rows, n_cols] with a scale for every `group` columns: FP8_128 blocks, or dense f16 if none fit."""
    n_rows, n_cols = codes.shape
    if n_cols % FLOAT_BLOCK or group % FLOAT_BLOCK:
        values = FORMATS["F8_E4M3"].dequantise(codes.reshape(-1, 1)).reshape(codes.shape)
        dense = (values * scales[:, np.arange(n_cols) // group]).astype(np.float16)
        return HostTensor(name, FORMATS["F16"], (n_rows, n_cols), dense.reshape(-1).view(np.uint8))
    form = FORMATS["FP8_128"]
    n_blocks = n_cols // FLOAT_BLOCK
    blocks = np.empty((n_rows, n_blocks, form.block_bytes), np.uint8)
    of_blocks = scales[:, np.arange(n_blocks) * FLOAT_BLOCK // group].astype("<f4")
    blocks[:, :, :4] = np.ascontiguousarray(of_blocks).view(np.uint8).reshape(n_rows, n_blocks, 4)
    blocks[:, :, 4:] = codes.reshape(n_rows, n_blocks, FLOAT_BLOCK)
    return HostTensor(name, form, (n_rows, n_cols), blocks.reshape(-1))
