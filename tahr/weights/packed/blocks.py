"""Groups of integer codes as blocks that backends multiply.

GPTQ, AWQ and compressed-tensors checkpoints keep codes, scales and zero points apart. Groups are 32, 64, 128 columns or
the whole row; our blocks have 32, so a group's scale is repeated in each of its blocks.
"""

import numpy as np
from numpy.typing import NDArray

from tahr.errors import CorruptFile
from tahr.weights.formats import FORMATS, Format
from tahr.weights.packed.groups import BLOCK, Bytes, Floats, IntGroups, by_rows, nibbles
from tahr.weights.tensor import HostTensor


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
