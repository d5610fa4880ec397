"""Matrices on a Vulkan device: dense as in the file, or codes and scales in planes, repacked by the device itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tahr import _vulkan as native
from tahr.backends.api import Bytes, Weight
from tahr.backends.vulkan.memory import DeviceMemory, Span
from tahr.backends.vulkan.queue import packed
from tahr.backends.vulkan.shaders import Kernels
from tahr.errors import QuantError, UnsupportedModel
from tahr.weights.formats import Format
from tahr.weights.tensor import HostTensor

RUN = 8  # columns that dense rows are filled to
BLOCK = 32  # columns of codes that share a scale
CHUNK_BYTES = 16 << 20  # bytes of a file that are on the device beside what becomes of them
REPACK_THREADS = 64


class Plane(NamedTuple):
    """How a kind of matrix is kept: bytes of a run of columns, and of its scales."""

    run: int  # columns
    code_bytes: int
    scale_bytes: int

    @property
    def is_dense(self) -> bool:
        return not self.scale_bytes


# The kinds of weights.glsl.
PLANES = {
    "f32": Plane(RUN, 32, 0),
    "f16": Plane(RUN, 16, 0),
    "bf16": Plane(RUN, 16, 0),
    "q8": Plane(BLOCK, 32, 2),
    "q4": Plane(BLOCK, 16, 4),
    "k4": Plane(256, 128, 20),
    "w8": Plane(BLOCK, 32, 8),
    "w8_offsets": Plane(BLOCK, 32, 16),
}
KINDS = {
    "F32": "f32", "F16": "f16", "BF16": "bf16", "Q8_0": "q8", "IQ4_NL": "q8", "Q4_0": "q4", "Q4_1": "q4", "Q4_K": "k4",
    "Q3_K": "w8", "Q5_0": "w8", "Q6_K": "w8", "IQ4_XS": "w8", "MXFP4": "w8", "Q5_1": "w8_offsets", "Q2_K": "w8_offsets",
    "Q5_K": "w8_offsets",
}  # fmt: skip
WIDENED = "f16"  # the kind that a format without a kernel becomes


@dataclass(frozen=True, slots=True)
class PlanedMatrix:
    """A matrix as the kernels read it."""

    kind: str
    n_rows: int
    n_cols: int
    codes: Span
    scales: Span | None

    @property
    def is_dense(self) -> bool:
        return PLANES[self.kind].is_dense


def kind_of(form: Format) -> str:
    return KINDS.get(form.name, WIDENED)


def plane_bytes(kind: str, n_rows: int, n_cols: int) -> tuple[int, int]:
    """The bytes of codes, and those of scales."""
    plane = PLANES[kind]
    n_runs = -(-n_cols // plane.run)
    return n_rows * n_runs * plane.code_bytes, n_rows * n_runs * plane.scale_bytes


def taken_bytes(tensor: HostTensor) -> int:
    """The memory of a tensor's matrix."""
    return sum(plane_bytes(kind_of(tensor.format), *tensor.shape[-2:]))


def check_shape(tensor: HostTensor) -> None:
    """Refuse what no kernel multiplies."""
    if len(tensor.shape) == 3:
        raise UnsupportedModel(
            f"This model has a stack of matrices ({tensor.name}), as experts and compressed attention need it, which "
            "the vulkan backend does not multiply yet: choose another model, or a backend that does."
        )
    if len(tensor.shape) != 2:
        raise QuantError(f"{tensor.name} has the shape {list(tensor.shape)}, but a weight matrix has two axes.")


def take(tensor: HostTensor, memory: DeviceMemory, kernels: Kernels, wait: Callable[[], None]) -> Weight:
    """Put a matrix on the device."""
    check_shape(tensor)
    kind = kind_of(tensor.format)
    n_rows, n_cols = tensor.shape
    n_bytes = plane_bytes(kind, n_rows, n_cols)
    wait()
    codes = memory.take(n_bytes[0])
    scales = memory.take(n_bytes[1]) if n_bytes[1] else None
    matrix = PlanedMatrix(kind, n_rows, n_cols, codes, scales)
    fill = fill_dense if matrix.is_dense else fill_packed
    fill(tensor, matrix, memory, kernels)
    tensor.forget()
    words = {"f16": "dense f16" if tensor.format.name in KINDS else "widened to f16"}
    name = words.get(kind, f"dense {kind}" if matrix.is_dense else f"planes {kind}")
    return Weight(tensor.name, tensor.format.name, name, n_rows, n_cols, sum(n_bytes), matrix)


def row_chunks(tensor: HostTensor, row_bytes: int) -> list[slice]:
    """Runs of rows that are taken at once."""
    n = max(1, CHUNK_BYTES // row_bytes)
    return [slice(first, min(first + n, tensor.shape[0])) for first in range(0, tensor.shape[0], n)]


def fill_dense(tensor: HostTensor, matrix: PlanedMatrix, memory: DeviceMemory, kernels: Kernels) -> None:
    plane = PLANES[matrix.kind]
    of_row = -(-matrix.n_cols // plane.run) * plane.code_bytes
    raw = tensor.data.reshape(matrix.n_rows, -1)
    for rows in row_chunks(tensor, of_row):
        part = raw[rows] if tensor.format.name in KINDS else widened(tensor.format, raw[rows])
        if part.shape[1] < of_row:
            part = np.pad(part, ((0, 0), (0, of_row - part.shape[1])))
        memory.write(matrix.codes.part(rows.start * of_row, len(part) * of_row), part)


def widened(form: Format, rows: Bytes) -> Bytes:
    """Stored rows as bytes of f16 numbers."""
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged file may hold scales that overflow
        values = form.dequantise(rows.reshape(-1, form.block_bytes)).astype(np.float16)
    return values.reshape(len(rows), -1).view(np.uint8)


def fill_packed(tensor: HostTensor, matrix: PlanedMatrix, memory: DeviceMemory, kernels: Kernels) -> None:
    """Bring the file's blocks to the device part by part, and have it take them apart."""
    assert matrix.scales
    if matrix.n_cols % PLANES[matrix.kind].run or matrix.n_cols % tensor.format.block:
        raise QuantError(f"{tensor.name} has rows of {matrix.n_cols} numbers, which blocks of its format do not fill.")
    raw = tensor.data.reshape(matrix.n_rows, -1)
    chunks = row_chunks(tensor, raw.shape[1])
    blocks = memory_for(memory, chunks[0].stop * raw.shape[1])
    of_row = plane_bytes(matrix.kind, 1, matrix.n_cols)
    pipeline = kernels.get(f"repack_{tensor.format.name}", kernels.threads(REPACK_THREADS))
    for rows in chunks:
        n = rows.stop - rows.start
        memory.write(blocks, raw[rows])
        codes = matrix.codes.part(rows.start * of_row[0], n * of_row[0])
        scales = matrix.scales.part(rows.start * of_row[1], n * of_row[1])
        n_blocks = n * matrix.n_cols // BLOCK
        tape = native.Tape(memory.device)
        constants = packed([blocks.address, codes.address, scales.address], n_blocks)
        groups = -(-n_blocks // kernels.threads(REPACK_THREADS)), 1, 1
        tape.append(pipeline, constants, groups, [blocks.range], [codes.range, scales.range])
        recording = tape.record()
        recording.run()
        recording.wait()


def memory_for(memory: DeviceMemory, n_bytes: int) -> Span:
    """Memory for a moment, which goes back at once. Kernels read whole words: a few bytes more."""
    buffer = native.Buffer(memory.device, n_bytes + 16, native.Home.DEVICE)
    return Span(buffer, 0, n_bytes + 16)
