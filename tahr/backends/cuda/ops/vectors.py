"""Products of few rows, which plain additions compute as fast as memory is read."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tahr.backends.cuda.kernels import fp8, linear, packed
from tahr.backends.cuda.layouts.fp8 import Fp8Matrix
from tahr.backends.cuda.layouts.packed import CodedMatrix

F32 = torch.float32
SHORT = {F32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}

Compact = CodedMatrix | Fp8Matrix  # matrices with kernels of their own


@dataclass(frozen=True, eq=False, slots=True)
class JoinedMatrix:
    """The matrices of several linears as one, one below the other."""

    values: torch.Tensor | Compact
    bias: torch.Tensor | None
    heights: list[int]


VECTOR_PRODUCTS: dict[type, Callable[..., torch.Tensor]] = {
    CodedMatrix: packed.packed_vector_linear,
    Fp8Matrix: fp8.fp8_vector_linear,
}


def most_vectors(w: Compact) -> int:
    """How many rows meet the matrix in its compact form; one, where there is a dense copy for more."""
    if isinstance(w, Fp8Matrix):
        return fp8.MOST_VECTORS
    return packed.MOST_VECTORS if w.dense is None else 1


def vector_product(w: torch.Tensor | Compact) -> Callable[..., torch.Tensor]:
    """A function that multiplies a few rows by a matrix."""
    return VECTOR_PRODUCTS.get(type(w), linear.vector_linear)


def wider(math: torch.dtype, *stored: torch.dtype) -> torch.dtype:
    """The type products run in: f32 if anything is f32, else that of the matrices."""
    return F32 if F32 in (math, *stored) else stored[0]
