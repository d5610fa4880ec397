"""Makers of tensors: each computes one from others when it is needed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tahr.errors import CorruptFile
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

PLAIN = {"F32": "<f4", "F16": "<u2", "BF16": "<u2"}  # formats whose numbers can be moved about one by one

Make = Callable[[], HostTensor]


def joined(parts: Sequence[Make]) -> Make:
    def make() -> HostTensor:
        tensors = [part() for part in parts]
        if len({(tensor.format.name, len(tensor.shape), tensor.shape[1:]) for tensor in tensors}) > 1:
            names = ", ".join(tensor.name for tensor in tensors)
            raise CorruptFile(
                f"Tensors {names} differ in width or format and make no one matrix; fetch the model again."
            )
        data = np.concatenate([tensor.data for tensor in tensors])
        n_rows = sum(tensor.shape[0] for tensor in tensors)
        return HostTensor(tensors[0].name, tensors[0].format, (n_rows, *tensors[0].shape[1:]), data)

    return make


def kept(make: Make, n_uses: int) -> Make:
    """A tensor that is made once for so many uses, and forgotten with the last of them."""
    uses: list[HostTensor] = []

    def give() -> HostTensor:
        if not uses:
            uses.extend([make()] * n_uses)
        return uses.pop()

    return give


def one_row(stored: Make) -> Make:
    def make() -> HostTensor:
        tensor = stored()
        return replace(tensor, shape=(1, *tensor.shape)) if len(tensor.shape) == 1 else tensor

    return make


def stack_of(stored: Make, n: int) -> Make:
    def make() -> HostTensor:
        tensor = stored()
        if len(tensor.shape) == 2 and tensor.shape[0] % n == 0:
            return replace(tensor, shape=(n, tensor.shape[0] // n, tensor.shape[1]))
        return tensor

    return make


def as_is(tensor: HostTensor) -> Make:
    return lambda: tensor


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows `first .. first + height` of every `of` rows, of which there are `n_groups` times as many."""

    first: int
    height: int
    of: int
    n_groups: int
    n_axes: int  # 2: of a matrix, or of each matrix of a stack; 1: of a bias, or of each bias of a stack


def cut(whole: Make, rows: Cut) -> Make:
    """Some rows of a tensor: a view of the file where they are all in one place."""

    def make() -> HostTensor:
        tensor = whole()
        check_axes(tensor, rows.n_axes)
        n_stacked = len(tensor.shape) - rows.n_axes
        stack = tensor.shape[:n_stacked]
        (n_rows, *cols) = tensor.shape[n_stacked:]
        check_rows(tensor, n_rows, rows.n_groups * rows.of)
        n_cuts = rows.n_groups * math.prod(stack)
        shape = (*stack, rows.n_groups * rows.height, *cols)
        row_bytes = tensor.n_bytes // (n_cuts * rows.of)
        if n_cuts == 1:
            begin = rows.first * row_bytes
            data = tensor.data[begin : begin + rows.height * row_bytes]
            return replace(tensor, shape=shape, data=data, start=tensor.start + begin)
        found = tensor.data.reshape(n_cuts, rows.of, row_bytes)[:, rows.first : rows.first + rows.height]
        return HostTensor(tensor.name, tensor.format, shape, found.reshape(-1))

    return make


def check_axes(tensor: HostTensor, n_axes: int) -> None:
    if len(tensor.shape) < n_axes or 0 in tensor.shape:
        what = "matrix" if n_axes == 2 else "vector"
        raise CorruptFile(
            f"Tensor {tensor.name} has the shape {list(tensor.shape)} and is no {what}; the file is damaged, fetch the "
            "model again."
        )


def check_rows(tensor: HostTensor, n_rows: int, wanted: int) -> None:
    if n_rows != wanted:
        raise CorruptFile(
            f"Tensor {tensor.name} has {n_rows} rows, but the model's configuration asks for {wanted}. "
            "The file is damaged or the two belong to different models; fetch the model again."
        )


def mxfp4(codes: Make, scales: Make) -> Make:
    """Codes `[..., n_blocks, 16]` and scales `[..., n_blocks]` as GGUF has them: a scale, then the codes of its block,
    the second half of which lies in the upper bits."""

    def make() -> HostTensor:
        stored = codes()
        exponents = scales()
        if stored.shape != (*exponents.shape, 16) or {stored.format.name, exponents.format.name} != {"U8"}:
            raise CorruptFile(f"Tensors {stored.name} and {exponents.name} are no MXFP4 pair; fetch the model again.")
        pairs = stored.data.reshape(-1, 16)
        values = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(-1, 32)  # neighbours share a byte
        packed = values[:, :16] | values[:, 16:] << 4
        data = np.concatenate([exponents.data.reshape(-1, 1), packed], axis=1).reshape(-1)
        shape = (*exponents.shape[:-1], 32 * exponents.shape[-1])
        return HostTensor(stored.name, FORMATS["MXFP4"], shape, data)

    return make


def turned(stored: Make) -> Make:
    """A matrix, or every matrix of a stack, with rows and columns exchanged; dense, if it was stored in blocks."""

    def make() -> HostTensor:
        tensor = stored()
        check_axes(tensor, 2)
        if tensor.format.name not in PLAIN:
            dense = np.ascontiguousarray(tensor.dense(), np.float32).reshape(-1).view(np.uint8)
            tensor = HostTensor(tensor.name, FORMATS["F32"], tensor.shape, dense)
        values = tensor.data.view(PLAIN[tensor.format.name]).reshape(tensor.shape).swapaxes(-1, -2)
        data = values.reshape(-1).view(np.uint8)
        return HostTensor(tensor.name, tensor.format, values.shape, data)

    return make
