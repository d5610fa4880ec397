"""Embeddings, norms, activations and sums of rows on a CUDA device."""

import torch

from tahr.backends.api import Activation, Rows, StepInputs, Tensor, Vector, Weight
from tahr.backends.cuda.kernels import packed
from tahr.backends.cuda.kernels.common import rows
from tahr.backends.cuda.layouts.packed import CodedMatrix
from tahr.backends.cuda.ops.device_rows import like, made, values
from tahr.backends.cuda.ops.late_rows import LateRows
from tahr.backends.cuda.ops.step_ops import StepOps
from tahr.backends.cuda.ops.vectors import F32


class DeviceRowOps(StepOps):
    """The part of the backend that computes row by row."""

    def embed(self, table: Weight, step: StepInputs, scale: float = 1.0) -> Tensor:
        inputs = self.context.enter(step)
        n = self._n_tokens(step)
        embed = packed.packed_embed if isinstance(table.data, CodedMatrix) else rows.embed
        found = embed(table.data, inputs, n, scale)
        return made(found, Rows.TOKENS, table.data.dtype)

    def embed_positions(self, table: Weight, step: StepInputs) -> Tensor:
        inputs = self.context.enter(step)
        n = self._n_tokens(step)
        dense = packed.unpacked_matrix(table.data, F32) if isinstance(table.data, CodedMatrix) else table.data
        return made(rows.embed_positions(dense, inputs, n), Rows.TOKENS, table.data.dtype)

    def rms_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        return like(x, rows.rms_norm(values(x), gain.data, eps, x.data.math))

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return like(x, torch.add(values(x).float(), values(y).float(), alpha=scale))

    def add_rms_norm(self, x: Tensor, y: Tensor, gain: Vector, eps: float, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        added = y.data.summands() if isinstance(y.data, LateRows) else values(y)
        s, normed = rows.add_rms_norm(values(x), added, gain.data, eps, scale, x.data.math)
        return like(x, s), like(x, normed)

    def head_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        heads = values(x).float().view(len(values(x)), -1, gain.width)
        normed = heads * torch.rsqrt(heads.square().mean(dim=2, keepdim=True) + eps) * gain.data
        return like(x, normed.view(len(heads), -1).to(x.data.math))

    def columns(self, x: Tensor, begin: int, width: int) -> Tensor:
        return like(x, values(x)[:, begin : begin + width].contiguous())

    def join_heads(self, x: Tensor, y: Tensor, n_heads: int) -> Tensor:
        parts = [values(part).unflatten(1, (n_heads, -1)).to(x.data.math) for part in (x, y)]
        return like(x, torch.cat(parts, dim=2).flatten(1))

    def layer_norm(self, x: Tensor, gain: Vector, bias: Vector | None, eps: float) -> Tensor:
        shift = None if bias is None else bias.data
        return like(x, rows.layer_norm(values(x), gain.data, shift, eps, x.data.math))

    def add_layer_norm(
        self, x: Tensor, y: Tensor, gain: Vector, bias: Vector | None, eps: float, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        added = y.data.summands() if isinstance(y.data, LateRows) else values(y)
        shift = None if bias is None else bias.data
        s, normed = rows.add_layer_norm(values(x), added, gain.data, shift, eps, scale, x.data.math)
        return like(x, s), like(x, normed)

    def head_layer_norm(self, x: Tensor, gain: Vector, eps: float, n_heads: int) -> Tensor:
        heads = values(x).float().unflatten(1, (n_heads, -1))
        normed = torch.nn.functional.layer_norm(heads, heads.shape[-1:], eps=eps).flatten(1) * gain.data
        return like(x, normed.to(x.data.math))

    def activate(self, gate: Tensor, up: Tensor | None, act: Activation) -> Tensor:
        return like(gate, rows.activate(values(gate), None if up is None else values(up), act, gate.data.math))

    def gate_rows(self, x: Tensor, scores: Tensor) -> Tensor:
        return like(x, values(x).float() * torch.sigmoid(values(scores).float()))

    def gather_rows(self, x: Tensor, step: StepInputs) -> Tensor:
        inputs = self.context.enter(step)
        n = step.limits.n_rows if self.context.inside else step.n_rows
        return made(rows.gather(values(x), inputs, n), Rows.LOGITS, x.data.math)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return like(x, values(x).float() * factor)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return like(x, torch.tanh(values(x).float() / cap) * cap)

    def clip(self, x: Tensor, limit: float) -> Tensor:
        return like(x, values(x).clamp(-limit, limit))
