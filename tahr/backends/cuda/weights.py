"""How matrices travel from a file to a CUDA device, and how matrices used together become one."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from tahr.backends.api import Vector, Weight
from tahr.weights.tensor import HostTensor

# Formats kept as they are, and how a NumPy array shows their numbers to torch; all others become dense bf16.
KEPT = {"F32": (torch.float32, "f4"), "F16": (torch.float16, "f2"), "BF16": (torch.bfloat16, "i2")}
SHORT = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
CHUNK = 1 << 23  # values that travel at a time


@dataclass(eq=False, slots=True)
class Matrix:
    """The values `[n_stack, n_rows, n_cols]` or `[n_rows, n_cols]`; they move when matrices are joined."""

    values: torch.Tensor
    joined: "Joined | None" = None


@dataclass(frozen=True, eq=False, slots=True)
class Joined:
    """Matrices of the same columns as one, one below the other; each of them is a view of it."""

    values: torch.Tensor
    bias: torch.Tensor | None
    heights: list[int]
    below: list[Matrix]  # all but the first, which holds this
    biases: list[Vector | None]

    def joins(self, ws: Sequence[Weight], biases: Sequence[Vector | None]) -> bool:
        """Whether it is made of exactly these."""
        ours, theirs = [*self.below, *self.biases], [*(w.data for w in ws[1:]), *biases]
        return len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs, strict=True))


def take(tensor: HostTensor, device: torch.device) -> Weight:
    """Move a matrix to the device."""
    name = tensor.format.name
    dtype = KEPT[name][0] if name in KEPT else torch.bfloat16
    values = torch.empty(tensor.n_values, dtype=dtype, device=device)
    at = 0
    for part in parts(tensor):
        values[at : at + len(part)] = part.to(device)
        at += len(part)
    tensor.forget()
    n_rows, n_cols = tensor.shape[-2:]
    n_stack = math.prod(tensor.shape[:-2])
    matrix = Matrix(values.view(tensor.shape))
    n_bytes = values.numel() * values.element_size()
    return Weight(tensor.name, name, f"dense {SHORT[dtype]}", n_rows, n_cols, n_bytes, matrix, n_stack)


def parts(tensor: HostTensor) -> Iterator[torch.Tensor]:
    """The values in order, a chunk at a time, in a type the device stores or converts itself."""
    form = tensor.format
    n_bytes = max(1, CHUNK // form.block) * form.block_bytes
    for at in range(0, tensor.n_bytes, n_bytes):
        data = tensor.data[at : at + n_bytes]
        if form.name in KEPT:
            dtype, code = KEPT[form.name]
            yield torch.from_numpy(data.view(f"<{code}").copy()).view(dtype)  # a copy: torch wants writable memory
        else:
            n = len(data) // form.block_bytes * form.block
            yield torch.from_numpy(replace(tensor, shape=(n,), data=data).dense())


def joined(ws: Sequence[Weight], biases: Sequence[Vector | None]) -> Joined | None:
    """The matrices as one, made at first use; None where their types differ."""
    first: Matrix = ws[0].data
    if first.joined and first.joined.joins(ws, biases):
        return first.joined
    first.joined = join(ws, biases) if joinable(ws, biases) else None
    return first.joined


def joinable(ws: Sequence[Weight], biases: Sequence[Vector | None]) -> bool:
    kinds = {(w.data.values.dtype, w.n_cols, w.n_stack) for w in ws}
    return len(kinds) == 1 and len({b is None for b in biases}) == 1 and len({id(w.data) for w in ws}) == len(ws)


def join(ws: Sequence[Weight], biases: Sequence[Vector | None]) -> Joined:
    """Stack matrices; their old memory is given up."""
    values = torch.cat([w.data.values for w in ws])
    heights = [w.n_rows for w in ws]
    for w, view in zip(ws, values.split(heights), strict=True):
        w.data.values = view
    present = [b.data for b in biases if b is not None]
    bias = torch.cat(present) if present else None
    return Joined(values, bias, heights, [w.data for w in ws[1:]], list(biases))
