"""Products of rows and matrices on a CUDA device, with what adapters add to them."""

from collections.abc import Mapping, Sequence

import torch

from tahr.backends.api import (
    Activation,
    AddedNorm,
    JoinedLinears,
    Linear,
    LinearShape,
    StepLimits,
    Tensor,
)
from tahr.backends.cuda.kernels import latent, linear
from tahr.backends.cuda.ops.device_rows import like, values
from tahr.backends.cuda.ops.lora import CudaLoraBank
from tahr.backends.cuda.ops.products import Products
from tahr.backends.cuda.ops.step_ops import StepOps
from tahr.backends.cuda.ops.vectors import F32, Compact, JoinedMatrix, wider


class LinearOps(StepOps):
    """The part of the backend that multiplies by matrices."""

    _products: Products

    def head_linears(self, x: Tensor, stack: Linear) -> Tensor:
        matrices = stack.weight.data
        self.context.need(matrices)
        math = x.data.math
        found = latent.head_linears(values(x), matrices, wider(math, matrices.dtype))
        return like(x, found.to(math))

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        weight = linear.weight
        bias = None if linear.bias is None else linear.bias.data
        values(x)  # may be put off too, and read what is now needed no more
        self.context.need(weight.data)
        late = None if self.lora else self._products.later(x, weight.data, bias)
        if late:
            self.context.put_off(weight.data, late)
            return Tensor(weight.n_rows, x.rows, late)
        return like(x, self._adapted(x, weight.data, bias, [linear]))

    def lora_bank(self, shapes: Mapping[str, LinearShape], limits: StepLimits) -> CudaLoraBank:
        return CudaLoraBank(shapes, limits, self.device)

    def _adapted(
        self,
        x: Tensor,
        w: torch.Tensor | Compact,
        bias: torch.Tensor | None,
        linears: Sequence[Linear],
    ) -> torch.Tensor:
        """The outputs of linears, which lie side by side, with what adapters add to them."""
        if not isinstance(self.lora, CudaLoraBank):
            return self._products.multiply(x, w, bias)

        heights = [linear.weight.n_rows for linear in linears]
        names = [linear.name for linear in linears]
        if spare := self.lora.spare_rows_of(names):
            found = self._products.multiply(x, *spare.begin(self.lora.n_used))
            self.lora.finish_behind(found, x.rows, names, heights)
            return found[:, : spare.n_out]

        begun = self.lora.begin(values(x), x.rows, names, heights)
        found = self._products.multiply(x, w, bias)
        self.lora.finish(found, begun)
        return found

    def linears(self, x: Tensor, joined: JoinedLinears) -> list[Tensor]:
        one = joined.data
        if one is None:
            return super().linears(x, joined)
        values(x)
        self.context.need(one.values)
        found = self._adapted(x, one.values, one.bias, joined.parts)
        parts = found.split(one.heights, dim=1)
        return [like(x, part) for part in parts]

    def gated(self, x: Tensor, gate_up: JoinedLinears, act: Activation) -> Tensor:
        one = gate_up.data
        if one is None or self.lora:
            return super().gated(x, gate_up, act)
        values(x)
        self.context.need(one.values)
        found = self._products.gated(x, one.values, one.bias, act)
        return super().gated(x, gate_up, act) if found is None else like(x, found)

    def norm_linears(self, norm: AddedNorm, joined: JoinedLinears) -> tuple[Tensor, list[Tensor]]:
        one = joined.data
        if not self._norms_vector(norm, one):
            return super().norm_linears(norm, joined)

        w = one.values
        self.context.need(w)
        s, result = linear.norm_vector_linear(row_norm(norm), w, one.bias, w.dtype)
        parts = result.split(one.heights, dim=1)
        return like(norm.x, s), [like(norm.x, part) for part in parts]

    def norm_gated(self, norm: AddedNorm, gate_up: JoinedLinears, act: Activation) -> tuple[Tensor, Tensor]:
        one = gate_up.data
        if not self._norms_vector(norm, one):
            return super().norm_gated(norm, gate_up, act)

        w = one.values
        self.context.need(w)
        s, result = linear.norm_vector_linear(row_norm(norm), w, one.bias, w.dtype, act)
        return like(norm.x, s), like(norm.x, result)

    def _norms_vector(self, norm: AddedNorm, one: JoinedMatrix | None) -> bool:
        """Whether one kernel norms the rows and multiplies them."""
        if one is None or self.lora or not isinstance(one.values, torch.Tensor):
            return False
        x = norm.x
        fits = x.width <= linear.NORM_COLS and values(x).dtype == F32
        return fits and self._products.is_vector(x, one.values)


def row_norm(norm: AddedNorm) -> linear.RowNorm:
    """The norm and what it is of, as a kernel takes them."""
    x = values(norm.x)
    added = values(norm.y)
    return linear.RowNorm(x, x, added, norm.gain.data, norm.eps, norm.scale)
