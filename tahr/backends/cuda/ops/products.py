"""Which kernel multiplies: by how many rows meet a matrix, and how the matrix is stored."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch

from tahr.backends.api import Activation, Rows, Tensor
from tahr.backends.cuda.kernels import fp8, fp8_few, linear, narrow_linear, packed
from tahr.backends.cuda.layouts.fp8 import Fp8Matrix
from tahr.backends.cuda.ops.late_rows import LateRows
from tahr.backends.cuda.ops.vectors import F32, Compact, most_vectors, vector_product, wider

Bias: TypeAlias = torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Products:
    """The products of a backend; a `deterministic` one sums in one way whatever the number of rows."""

    deterministic: bool

    def multiply(self, x: Tensor, w: torch.Tensor | Compact, bias: Bias) -> torch.Tensor:
        """x @ w.T + bias: f32 in our own tiles and for gathered rows, which become logits; else the type of w."""
        if not isinstance(w, torch.Tensor):
            return self._multiply_compact(x, w, bias)
        rows = x.data.values
        dtype = wider(x.data.math, w.dtype)
        if self.is_vector(x, w):
            return linear.vector_linear(rows, w, bias, dtype)
        if self.deterministic or dtype == F32 or len(rows) <= linear.FEW:
            return linear.tiled_linear(rows, w, bias, dtype)
        if x.rows is Rows.LOGITS:
            return linear.blas_linear(rows, w, bias, F32)
        tile = narrow_linear.tile_for(rows, w, is_gated=False)
        return narrow_linear.narrow_linear(rows, w, bias, tile) if tile else linear.blas_linear(rows, w, bias, w.dtype)

    def later(self, x: Tensor, w: torch.Tensor | Compact, bias: Bias) -> LateRows | None:
        """The product, put off where the op that reads it may gain by that."""
        if self.deterministic or x.rows is Rows.LOGITS or self.is_vector(x, w):
            return None
        in_parts = self._in_parts(x, w, bias)
        return in_parts and LateRows(x.data.math, partial(self.multiply, x, w, bias), in_parts)

    def _in_parts(
        self,
        x: Tensor,
        w: torch.Tensor | Compact,
        bias: Bias,
    ) -> Callable[[], torch.Tensor] | None:
        """A function for a product in parts, where that is faster than the whole."""
        rows = x.data.values
        math = x.data.math
        if isinstance(w, Fp8Matrix):
            n_parts = fp8_few.parts_of(rows, w, bias) if math != F32 else 0
            return partial(fp8_few.few_in_parts, rows, w, math, n_parts) if n_parts else None
        if not isinstance(w, torch.Tensor) or wider(math, w.dtype) == F32:
            return None
        n_parts = narrow_linear.parts_of(rows, w)
        tile = narrow_linear.PARTS_TILE
        return partial(narrow_linear.narrow_linear, rows, w, bias, tile, n_parts=n_parts) if n_parts else None

    def _multiply_compact(self, x: Tensor, w: Compact, bias: Bias) -> torch.Tensor:
        """Multiply by a packed matrix; a model in f32 has its packed matrices made dense in f32."""
        rows = x.data.values
        dtype = x.data.math
        if self.is_vector(x, w):
            return vector_product(w)(rows, w, bias, dtype)
        out_dtype = F32 if x.rows is Rows.LOGITS else dtype
        if isinstance(w, Fp8Matrix):
            if dtype != F32 and fp8_few.takes(rows, w):
                return fp8_few.few_linear(rows, w, bias, dtype)
            return fp8.fp8_linear(rows, w, bias, out_dtype)
        if dtype == F32:
            return linear.tiled_linear(rows, packed.unpacked_matrix(w, F32), bias, F32)
        if w.dense is not None:
            return self.multiply(x, w.dense, bias)
        return linear.blas_linear(rows, packed.unpacked_matrix(w, dtype), bias, out_dtype)

    def is_vector(self, x: Tensor, w: torch.Tensor | Compact) -> bool:
        """Whether so few rows meet the matrix that plain additions keep up with the memory."""
        n_rows = len(x.data.values)
        if not isinstance(w, torch.Tensor):
            return x.data.math != F32 and n_rows <= most_vectors(w)
        is_short = wider(x.data.math, w.dtype) != F32
        return is_short and not self.deterministic and n_rows <= linear.N_VECTORS

    def gated(self, x: Tensor, w: torch.Tensor | Compact, bias: Bias, act: Activation) -> torch.Tensor | None:
        """act(gate) * up for a gate above an up matrix, where one kernel does it all; else None."""
        rows = x.data.values
        if self.is_vector(x, w):
            return vector_product(w)(rows, w, bias, w.dtype if isinstance(w, torch.Tensor) else x.data.math, act)
        if isinstance(w, Fp8Matrix) and x.data.math != F32 and fp8_few.takes(rows, w):
            return fp8_few.few_linear(rows, w, bias, x.data.math, act)
        if self.deterministic or not isinstance(w, torch.Tensor) or not rows.dtype == x.data.math == w.dtype:
            return None
        tile = narrow_linear.tile_for(rows, w, is_gated=True)
        return narrow_linear.narrow_linear(rows, w, bias, tile, act) if tile else None
