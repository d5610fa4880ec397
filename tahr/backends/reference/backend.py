"""The oracle: every op in plain NumPy, obeying the numerics of the interface and slow on purpose."""

import math
from collections.abc import Sequence

import numpy as np

from tahr.backends.api import (
    Activation,
    AttentionScaling,
    AttentionSpec,
    Backend,
    Bytes,
    DeltaNet,
    ExpertMLPs,
    Extras,
    Floats,
    Ints,
    KVShape,
    KVStore,
    LayerMemory,
    Linear,
    MemoryLayout,
    Rope,
    Rotation,
    Rows,
    StateSpace,
    StepInputs,
    StepLimits,
    Tensor,
    Vector,
    Weight,
    kv_sides,
)
from tahr.backends.api.recurrence import delta_net, state_space
from tahr.backends.reference import arithmetic
from tahr.backends.reference.arithmetic import F32, DenseMatrix, multiply_by, rms_norm, sigmoid
from tahr.backends.reference.attention import (
    attend_sequence,
    prepare_keys,
    prepare_queries,
    split_heads,
    store_heads,
)
from tahr.backends.reference.experts import run_experts
from tahr.backends.reference.kv_rows import page_slots
from tahr.weights.tensor import HostTensor


def rows_like(x: Tensor, values: Floats) -> Tensor:
    """Values for the rows of x."""
    return Tensor(values.shape[1], x.rows, values)


class ReferenceBackend(Backend):
    """Runs every op where it is called."""

    name = "reference"
    summary = "reference: NumPy, slow on purpose"
    kv_dtypes = ("f32", "f16", "q8_0")
    stores_cross = True
    runs_drafters = True
    draws_frames = True

    # ---- memory -----------------------------------------------------------------------------------------------

    def weight(self, tensor: HostTensor) -> Weight:
        values = tensor.dense()
        is_quantised = tensor.format.block > 1 and not tensor.format.floats
        return Weight(
            name=tensor.name,
            format=tensor.format.name,
            kernel="numpy",
            n_rows=values.shape[-2],
            n_cols=values.shape[-1],
            n_bytes=values.nbytes,
            data=DenseMatrix(values, int8=is_quantised),
            n_stack=math.prod(values.shape[:-2]),
        )

    def weight_bytes(self, tensor: HostTensor, n_taken: int = 0) -> int:
        return 4 * tensor.n_values

    def vector(self, values: Floats) -> Vector:
        return Vector(len(values), np.array(values, F32))

    def tensor(self, values: Floats) -> Tensor:
        return Tensor(values.shape[1], Rows.FIXED, np.array(values, F32))

    def read(self, tensor: Tensor) -> Floats:
        rows: Floats = tensor.data
        return rows

    def step_inputs(self, limits: StepLimits) -> StepInputs:
        return StepInputs.empty(limits)

    def paged_layer(self, shape: KVShape, n_pages: int, layout: MemoryLayout) -> Bytes:
        n_slots = n_pages * layout.page_size
        head_bytes = shape.token_bytes(layout.dtype) // shape.n_heads
        return np.zeros((n_slots, shape.n_heads, head_bytes), np.uint8)

    def read_pages(self, kv: KVStore, pages: Sequence[int], group: int = 0) -> list[Bytes]:
        slots = page_slots(pages, kv.page_size)
        return [layer[slots] for layer in kv.paged(group)]

    def write_pages(self, kv: KVStore, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None:
        slots = page_slots(pages, kv.page_size)
        for layer, values in zip(kv.paged(group), layers, strict=True):
            layer[slots] = values

    # ---- rows of tokens ---------------------------------------------------------------------------------------

    def embed(self, table: Weight, step: StepInputs, scale: float = 1.0) -> Tensor:
        ids = step.ids[: step.n_tokens]
        rows = table.data.values[ids] * F32(scale)
        return Tensor(table.n_cols, Rows.TOKENS, rows)

    def embed_positions(self, table: Weight, step: StepInputs) -> Tensor:
        positions = step.positions[: step.n_tokens]
        rows = table.data.values[positions]
        return Tensor(table.n_cols, Rows.TOKENS, rows)

    def gather_rows(self, x: Tensor, step: StepInputs) -> Tensor:
        rows = step.logit_rows[: step.n_rows]
        return Tensor(x.width, Rows.LOGITS, x.data[rows])

    def cos_sin(self, step: StepInputs, rope: Rope) -> Tensor:
        positions = rope_positions(step, rope)
        angle = positions.astype(F32) * rope.inv_freq
        both = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
        scaled = both * F32(rope.scale)
        return Tensor(scaled.shape[1], Rows.TOKENS, scaled.astype(F32))

    # ---- value by value ---------------------------------------------------------------------------------------

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        total = x.data + F32(scale) * y.data
        return rows_like(x, total)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        scaled = x.data * F32(factor)
        return rows_like(x, scaled)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        capped = F32(cap) * np.tanh(x.data / F32(cap))
        return rows_like(x, capped)

    def clip(self, x: Tensor, limit: float) -> Tensor:
        clipped = np.clip(x.data, F32(-limit), F32(limit))
        return rows_like(x, clipped)

    def gate_rows(self, x: Tensor, scores: Tensor) -> Tensor:
        gated = x.data * sigmoid(scores.data)
        return rows_like(x, gated)

    def activate(self, gate: Tensor, up: Tensor | None, act: Activation) -> Tensor:
        factors = up.data if up else None
        activated = arithmetic.activate(gate.data, factors, act)
        return rows_like(gate, activated)

    # ---- norms ------------------------------------------------------------------------------------------------

    def rms_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        normed = rms_norm(x.data, gain.data, eps)
        return rows_like(x, normed)

    def head_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        heads = split_heads(x.data, gain.width)
        normed = rms_norm(heads, gain.data, eps)
        return rows_like(x, normed.reshape(x.data.shape))

    def layer_norm(self, x: Tensor, gain: Vector, bias: Vector | None, eps: float) -> Tensor:
        mean = x.data.mean(axis=-1, keepdims=True)
        normed = rms_norm(x.data - mean, gain.data, eps)
        shifted = normed + bias.data if bias else normed
        return rows_like(x, shifted)

    # ---- columns and products ---------------------------------------------------------------------------------

    def columns(self, x: Tensor, begin: int, width: int) -> Tensor:
        end = begin + width
        return rows_like(x, x.data[:, begin:end])

    def join_heads(self, x: Tensor, y: Tensor, n_heads: int) -> Tensor:
        n_rows = len(x.data)
        heads = [part.data.reshape(n_rows, n_heads, -1) for part in (x, y)]
        both = np.concatenate(heads, axis=2)
        return rows_like(x, both.reshape(n_rows, -1))

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        product = multiply_by(x.data, linear)
        return self.add_adapters(x, rows_like(x, product), linear)

    def head_linears(self, x: Tensor, stack: Linear) -> Tensor:
        heads = split_heads(x.data, stack.weight.n_cols)
        indices = range(stack.weight.n_stack)
        products = [arithmetic.multiply(heads[:, i], stack.weight.data, i) for i in indices]
        return rows_like(x, np.concatenate(products, axis=1))

    def experts(self, x: Tensor, scores: Tensor, mlps: ExpertMLPs) -> Tensor:
        out = run_experts(x.data, scores.data, mlps)
        return rows_like(x, out)

    # ---- memory of sequences ----------------------------------------------------------------------------------

    def rope_and_cache(self, qkv: Sequence[Tensor], rotation: Rotation, memory: LayerMemory) -> Tensor:
        key_type, _ = kv_sides(memory.store.dtype)
        heads = [split_heads(x.data, memory.kv_shape.head_dim) for x in qkv]
        if heads[1:]:
            k = prepare_keys(heads[1], rotation, key_type)
            store_heads([k, *heads[2:]], memory)
        q = prepare_queries(heads[0], rotation, key_type)
        return rows_like(qkv[0], q.reshape(qkv[0].data.shape))

    def scale_queries(self, q: Tensor, attn_scaling: AttentionScaling, step: StepInputs) -> Tensor:
        positions = step.positions[: step.n_tokens, None]
        n_periods = (positions + attn_scaling.offset) // attn_scaling.period
        factors = 1 + F32(attn_scaling.beta) * np.log1p(n_periods.astype(F32))
        return rows_like(q, q.data * factors)

    def attention(self, q: Tensor, spec: AttentionSpec, memory: LayerMemory) -> Tensor:
        shape = memory.kv_shape
        step = memory.step
        heads = split_heads(q.data, shape.head_dim)
        out = np.zeros((*heads.shape[:2], shape.value_dim), F32)
        for seq in range(step.n_seqs):
            begin = step.query_start[seq]
            end = step.query_start[seq + 1]
            out[begin:end] = attend_sequence(heads[begin:end], seq, spec, memory)
        return rows_like(q, out.reshape(len(out), heads.shape[1] * shape.value_dim))

    def delta_net(self, parts: Sequence[Tensor], net: DeltaNet, memory: LayerMemory) -> Tensor:
        out = delta_net([part.data for part in parts], net, memory)
        return rows_like(parts[0], out)

    def state_space(self, parts: Sequence[Tensor], net: StateSpace, memory: LayerMemory) -> Tensor:
        out = state_space([part.data for part in parts], net, memory)
        return rows_like(parts[0], out)


def rope_positions(step: StepInputs, rope: Rope) -> Ints:
    """The positions that turn every token: [n_tokens, 1], or [n_tokens, n_frequencies]."""
    n = step.n_tokens
    if not step.limits.extras & Extras.ROPE:
        return step.positions[:n, None]
    return step.rope_positions[rope.axes or (0,), :n].T
