"""Attention and recurrences on a CUDA device, and the rotation of what they read."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tahr.backends.api import (
    AttentionScaling,
    AttentionSpec,
    DeltaNet,
    Extras,
    LayerMemory,
    Rope,
    Rotation,
    Rows,
    StateSpace,
    StepInputs,
    Tensor,
)
from tahr.backends.cuda.kernels import attention, latent, recurrence, rope_attention
from tahr.backends.cuda.kernels.attention import AttentionCall
from tahr.backends.cuda.kernels.common import rope_kv
from tahr.backends.cuda.ops.device_rows import like, made, values
from tahr.backends.cuda.ops.step_ops import StepOps
from tahr.backends.cuda.ops.vectors import F32
from tahr.backends.cuda.ops.whole_attention import attend_whole, takes_whole


class RopeOnDevice(NamedTuple):
    """Numbers of a rope; the rope is kept too, so that its id stays its own."""

    rope: Rope
    frequencies: torch.Tensor
    axes: torch.Tensor


class TokenOps(StepOps):
    """The part of the backend in which tokens meet those before them."""

    _ropes: dict[int, RopeOnDevice]

    def cos_sin(self, step: StepInputs, rope: Rope) -> Tensor:
        inputs = self.context.enter(step)
        there = self._rope_on_device(rope)
        positions = inputs.positions
        begins = None
        if step.limits.extras & Extras.ROPE:
            positions = inputs.extras["rope_positions"]
            begins = there.axes * positions.shape[1]
        found = rope_kv.cos_sin(positions, self._n_tokens(step), there.frequencies, rope.scale, begins)
        return made(found, Rows.TOKENS, F32)

    def _rope_on_device(self, rope: Rope) -> RopeOnDevice:
        if id(rope) not in self._ropes:
            frequencies = torch.tensor(rope.inv_freq, dtype=F32, device=self.device)
            axes = torch.tensor(rope.axes or (0,) * len(frequencies), dtype=torch.int32, device=self.device)
            self._ropes[id(rope)] = RopeOnDevice(rope, frequencies, axes)
        return self._ropes[id(rope)]

    def rope_and_cache(self, qkv: Sequence[Tensor], rotation: Rotation, memory: LayerMemory) -> Tensor:
        return self._rope_and_cache(qkv, rotation, memory, None)

    def _rope_and_cache(
        self,
        qkv: Sequence[Tensor],
        rotation: Rotation,
        memory: LayerMemory,
        new_keys: torch.Tensor | None,
    ) -> Tensor:
        inputs = self.context.enter(memory.step)
        (q, *kv) = qkv
        found = rope_kv.rope_and_cache(
            values(q),
            [values(x) for x in kv],
            rotation,
            memory.data,
            inputs.slot_mapping[memory.group],
            inputs.counts,
            q.data.math,
            new_keys,
        )
        return like(q, found)

    def rope_attention(self, qkv: list[Tensor], rotation: Rotation, spec: AttentionSpec, memory: LayerMemory) -> Tensor:
        first = qkv[0]
        q, *kv = (values(x) for x in qkv)
        if self.deterministic or spec.chunked:
            return super().rope_attention(qkv, rotation, spec, memory)

        dim = memory.kv_shape.head_dim
        if takes_whole(q, kv, first.data.math, spec, dim):
            keys = torch.empty_like(kv[0], memory_format=torch.contiguous_format)
            rotated = values(self._rope_and_cache(qkv, rotation, memory, keys))
            inputs = self.context.enter(memory.step)
            longest = min(self._n_tokens(memory.step), memory.step.limits.n_tokens_per_seq)
            return like(first, attend_whole(rotated, keys, kv[1], dim, spec, inputs, longest))

        if attention.fuses_rope(len(qkv), spec, memory):
            call = self._attention_call(first, spec, memory)
            slots = call.inputs.slot_mapping[memory.group]
            return like(first, rope_attention.rope_decode(call, kv, rotation, slots, first.data.math))

        if attention.reads_rows(q, kv, spec, memory):
            keys = torch.empty_like(kv[0], memory_format=torch.contiguous_format)
            rotated = self._rope_and_cache(qkv, rotation, memory, keys)
            call = self._attention_call(rotated, spec, memory)
            new = attention.StepRows(keys, kv[1])
            return like(first, attention.attend_mixed(call, self._n_seqs(memory.step), new))

        return super().rope_attention(qkv, rotation, spec, memory)

    def _attention_call(self, q: Tensor, spec: AttentionSpec, memory: LayerMemory) -> AttentionCall:
        inputs = self.context.enter(memory.step)
        stored = memory.data
        dtype = attention.product_type(q.data.math, stored.dtype)
        lengths = inputs.seq_lens[memory.group]
        pages = inputs.page_tables[memory.group]
        return AttentionCall(values(q), stored, pages, inputs, spec, dtype, lengths)

    def attention(self, q: Tensor, spec: AttentionSpec, memory: LayerMemory) -> Tensor:
        return like(q, self._attend(self._attention_call(q, spec, memory), memory))

    def _attend(self, call: AttentionCall, memory: LayerMemory) -> torch.Tensor:
        step = memory.step
        spec = call.spec
        if n_latent := memory.kv_shape.latent:
            return latent.attend_latent(call, n_latent)
        if self.deterministic or not spec.causal or spec.chunked:
            return attention.attend_exact(call, self._n_seqs(step))
        if step.limits.n_tokens_per_seq == 1:
            return attention.attend_decode(call)
        return attention.attend_mixed(call, self._n_seqs(step))

    def scale_queries(self, q: Tensor, attn_scaling: AttentionScaling, step: StepInputs) -> Tensor:
        positions = self.context.enter(step).positions[: len(values(q))]
        n_periods = torch.div(positions + attn_scaling.offset, attn_scaling.period, rounding_mode="floor")
        factors = 1 + attn_scaling.beta * torch.log1p(n_periods.float())
        return like(q, (values(q).float() * factors[:, None]).to(values(q).dtype))

    def delta_net(self, parts: Sequence[Tensor], net: DeltaNet, memory: LayerMemory) -> Tensor:
        step = memory.step
        inputs = self.context.enter(step)
        rows = [values(part) for part in parts]
        found = recurrence.run_delta_net(rows, net, memory.data, inputs, self._n_seqs(step))
        return like(parts[0], found.to(parts[0].data.math))

    def state_space(self, parts: Sequence[Tensor], net: StateSpace, memory: LayerMemory) -> Tensor:
        step = memory.step
        inputs = self.context.enter(step)
        rows = [values(part) for part in parts]
        found = recurrence.run_state_space(rows, net, memory.data, inputs, self._n_seqs(step))
        return like(parts[0], found.to(parts[0].data.math))
