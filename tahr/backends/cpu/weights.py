"""Matrices of the CPU backend, rearranged into panels: from the file's bytes, or dense where no kernel exists."""

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tahr import _native as native
from tahr._native import address_of
from tahr.backends.host.memory import refuse_unfit
from tahr.errors import QuantError
from tahr.weights.formats import Format
from tahr.weights.tensor import HostTensor

# Packed at a time, and then dropped from the mapped file: a matrix never takes twice its size.
SLICE_BYTES = 4 << 20
# An embedding table is read row by row in its file layout; it is packed only if a linear asks for it too.
TABLE_NAMES = ("token_embd", "embed_tokens", "embed_tokens_per_layer", "wte", "word_embeddings", "embed_in")
TABLES = tuple(f"{name}.weight" for name in TABLE_NAMES)


def table_bytes(host: HostTensor) -> int:
    """Bytes that every step reads of the tensor in its file."""
    return host.n_bytes if host.name.endswith(TABLES) else 0


def packed_format(stored: Format) -> str:
    """The format in which a matrix is packed."""
    return stored.name if native.has_format(stored.name) else "F16"


def stack_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """How many matrices, and how high and wide each."""
    return math.prod(shape[:-2]), shape[-2], shape[-1]


class PackedMatrix:
    """A weight matrix, or a stack of such."""

    def __init__(self, host: HostTensor, isa: str, pool: native.Pool):
        if len(host.shape) not in (2, 3):
            raise QuantError(
                f"{host.name} has the shape {list(host.shape)}, but a weight matrix has two axes, or three if stacked."
            )
        self.host = host
        self.isa = isa
        self.pool = pool
        self.shape = stack_shape(host.shape)
        self.native = native.has_format(host.format.name)
        self.format = packed_format(host.format)
        self.kernel = f"{self.format.lower()} panels ({isa})" if self.native else f"dense f16 panels ({isa})"
        self.n_bytes = native.packed_bytes(self.format, isa, *self.shape)
        if not table_bytes(host):
            self.packed  # noqa: B018  (now, while the loader reports progress)

    @cached_property
    def packed(self) -> native.Matrix:
        """The matrix as the kernels read it."""
        refuse_unfit(self.host.name, self.n_bytes)
        packed = native.Matrix(self.format, self.isa, *self.shape)
        step = max(1, SLICE_BYTES * packed.n_panels // self.n_bytes)
        for begin in range(0, packed.n_panels, step):
            end = min(begin + step, packed.n_panels)
            rows = self._rows(packed.rows_before(begin), packed.rows_before(end))
            packed.fill(begin, end, address_of(rows), rows.nbytes, self.pool)
            self.host.forget()
        return packed

    def _rows(self, begin: int, end: int) -> NDArray[Any]:
        """Some rows in the format that is packed."""
        row_bytes = self.host.n_bytes // (self.shape[0] * self.shape[1])
        data = self.host.data[begin * row_bytes : end * row_bytes]
        return data if self.native else dense_f16(self.host.format, data)

    @cached_property
    def table(self) -> tuple[str, NDArray[Any]]:
        """A format and rows in that format, exactly as in the file, for looking up single rows."""
        if self.native:
            return self.host.format.name, self.host.data
        return "F32", self.host.dense()


def dense_f16(form: Format, data: NDArray[np.uint8]) -> NDArray[np.float16]:
    """Stored blocks as f16 values."""
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged file may hold scales that overflow
        return form.dequantise(data.reshape(-1, form.block_bytes)).astype(np.float16)
