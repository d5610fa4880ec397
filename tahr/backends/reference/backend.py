"""The oracle: every op in plain NumPy, obeying the numerics of the interface and slow on purpose."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tahr.backends import api
from tahr.backends.api import INT8_BLOCK, KV_BLOCK, Bytes, Floats, Rows, Tensor
from tahr.backends.api.recurrence import delta_net, state_space
from tahr.weights.tensor import HostTensor


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """Dequantised values, and whether activations must be rounded to int8 before they meet them."""

    values: Floats
    int8: bool


class ReferenceBackend(api.Backend):
    """Runs every op where it is called."""

    name = "reference"
    summary = "reference: NumPy, slow on purpose"
    kv_dtypes = ("f32", "f16", "q8_0")

    # ---- memory -----------------------------------------------------------------------------------------------

    def weight(self, tensor: HostTensor) -> api.Weight:
        values = tensor.dense()
        stack = math.prod(values.shape[:-2])
        (n_rows, n_cols) = values.shape[-2:]
        matrix = DenseMatrix(values, int8=tensor.format.block > 1 and not tensor.format.floats)
        return api.Weight(tensor.name, tensor.format.name, "numpy", n_rows, n_cols, values.nbytes, matrix, stack)

    def weight_bytes(self, tensor: HostTensor, n_taken: int = 0) -> int:
        return 4 * tensor.n_values

    def vector(self, values: Floats) -> api.Vector:
        return api.Vector(len(values), np.array(values, np.float32))

    def tensor(self, values: Floats) -> Tensor:
        return Tensor(values.shape[1], Rows.FIXED, np.array(values, np.float32))

    def read(self, tensor: Tensor) -> Floats:
        rows: Floats = tensor.data
        return rows

    def step_inputs(self, limits: api.StepLimits) -> api.StepInputs:
        return api.StepInputs.empty(limits)

    def paged_layer(self, shape: api.KVShape, n_pages: int, layout: api.MemoryLayout) -> Bytes:
        head_bytes = shape.token_bytes(layout.dtype) // shape.n_heads
        return np.zeros((n_pages * layout.page_size, shape.n_heads, head_bytes), np.uint8)

    def read_pages(self, kv: api.KVStore, pages: Sequence[int], group: int = 0) -> list[Bytes]:
        slots = page_slots(pages, kv.page_size)
        return [layer[slots] for layer in kv.paged(group)]

    def write_pages(self, kv: api.KVStore, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None:
        slots = page_slots(pages, kv.page_size)
        for layer, values in zip(kv.paged(group), layers, strict=True):
            layer[slots] = values

    # ---- ops --------------------------------------------------------------------------------------------------

    def embed(self, table: api.Weight, step: api.StepInputs, scale: float = 1.0) -> Tensor:
        rows = table.data.values[step.ids[: step.n_tokens]]
        return Tensor(table.n_cols, Rows.TOKENS, rows * np.float32(scale))

    def embed_positions(self, table: api.Weight, step: api.StepInputs) -> Tensor:
        return Tensor(table.n_cols, Rows.TOKENS, table.data.values[step.positions[: step.n_tokens]])

    def rms_norm(self, x: Tensor, gain: api.Vector, eps: float) -> Tensor:
        return Tensor(x.width, x.rows, rms_norm(x.data, gain.data, eps))

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return Tensor(x.width, x.rows, x.data + np.float32(scale) * y.data)

    def head_norm(self, x: Tensor, gain: api.Vector, eps: float) -> Tensor:
        heads = split_heads(x.data, gain.width)
        return Tensor(x.width, x.rows, rms_norm(heads, gain.data, eps).reshape(x.data.shape))

    def columns(self, x: Tensor, begin: int, width: int) -> Tensor:
        return Tensor(width, x.rows, x.data[:, begin : begin + width])

    def join_heads(self, x: Tensor, y: Tensor, n_heads: int) -> Tensor:
        heads = [part.data.reshape(len(part.data), n_heads, -1) for part in (x, y)]
        return Tensor(x.width + y.width, x.rows, np.concatenate(heads, axis=2).reshape(len(x.data), -1))

    def head_linears(self, x: Tensor, stack: api.Linear) -> Tensor:
        heads = split_heads(x.data, stack.weight.n_cols)
        found = [multiply(heads[:, i], stack.weight.data, i) for i in range(stack.weight.n_stack)]
        return Tensor(len(found) * stack.weight.n_rows, x.rows, np.concatenate(found, axis=1))

    def layer_norm(self, x: Tensor, gain: api.Vector, bias: api.Vector | None, eps: float) -> Tensor:
        centred = x.data - x.data.mean(axis=-1, keepdims=True)
        normed = rms_norm(centred, gain.data, eps)
        return Tensor(x.width, x.rows, normed if bias is None else normed + bias.data)

    def linear(self, x: Tensor, linear: api.Linear) -> Tensor:
        y = multiply(x.data, linear.weight.data)
        y = y if linear.bias is None else y + linear.bias.data
        return self.add_adapters(x, Tensor(y.shape[1], x.rows, y), linear)

    def activate(self, gate: Tensor, up: Tensor | None, act: api.Activation) -> Tensor:
        return Tensor(gate.width, gate.rows, activated(gate.data, None if up is None else up.data, act))

    def experts(self, x: Tensor, scores: Tensor, mlps: api.ExpertMLPs) -> Tensor:
        out = np.zeros((len(x.data), mlps.down.weight.n_rows), np.float32)
        for row, row_scores in enumerate(scores.data):
            for expert, share in route(row_scores, mlps.routing):
                one = x.data[row : row + 1] * (share if mlps.routing.scales_input else np.float32(1))
                inner = activated(of_expert(one, mlps.gate, expert), of_expert(one, mlps.up, expert), mlps.act)
                out[row] += (1 if mlps.routing.scales_input else share) * of_expert(inner, mlps.down, expert)[0]
        return Tensor(out.shape[1], x.rows, out)

    def cos_sin(self, step: api.StepInputs, rope: api.Rope) -> Tensor:
        angle = step.positions[: step.n_tokens, None].astype(np.float32) * rope.inv_freq
        turned = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * np.float32(rope.scale)
        return Tensor(turned.shape[1], Rows.TOKENS, turned.astype(np.float32))

    def rope_and_cache(self, qkv: Sequence[Tensor], rotation: api.Rotation, memory: api.LayerMemory) -> Tensor:
        step = memory.step
        norms = rotation.norms
        key_type, value_type = api.kv_sides(memory.store.dtype)
        q, *kv = (split_heads(x.data, memory.kv_shape.head_dim) for x in qkv)
        q = rms_norm(q, norms.query.data, norms.eps) if norms else q
        q = rope(q, rotation.cos_sin.data, rotation.style)
        q = hadamard(q) if key_type == "q8_0" else q
        if kv:
            k = rms_norm(kv[0], norms.key.data, norms.eps) if norms else kv[0]
            k = rope(k, rotation.cos_sin.data, rotation.style)
            if key_type == "q8_0" and rotation.key_mean:
                k = k - rotation.key_mean.data.reshape(k.shape[1:])
            slots = memory.slot_mapping[: step.n_tokens]
            stored = [encode(k, key_type), *(encode(v, value_type) for v in kv[1:])]
            memory.data[slots] = np.concatenate(stored, axis=2)
        return Tensor(qkv[0].width, qkv[0].rows, q.reshape(len(q), qkv[0].width))

    def attention(self, q: Tensor, spec: api.AttentionSpec, memory: api.LayerMemory) -> Tensor:
        step = memory.step
        store = memory.store
        shape = memory.kv_shape
        out = np.zeros((len(q.data), q.width // shape.head_dim * shape.value_dim), np.float32)
        key_type, value_type = api.kv_sides(store.dtype)
        key_bytes = api.stored_head_bytes(key_type, shape.head_dim)
        for seq in range(step.n_seqs):
            first = step.query_start[seq]
            end = step.query_start[seq + 1]
            positions = step.positions[first:end]
            seen = np.arange(max(0, positions[0] - spec.window + 1) if spec.window else 0, step.seq_lens[seq])
            slots = sequence_slots(memory.page_table[seq], seen, store.page_size)
            keys = decode(memory.data[slots, :, :key_bytes], key_type)
            values = (
                keys[..., -shape.latent :] if shape.latent else decode(memory.data[slots, :, key_bytes:], value_type)
            )
            queries = split_heads(q.data[first:end], shape.head_dim)
            distance = seen[None, :] - positions[:, None]
            if spec.chunked:
                distance[seen[None, :] // spec.window != positions[:, None] // spec.window] = -spec.window
            mixed = attend(queries, keys, values, distance, spec)
            out[first:end] = (hadamard(mixed) if value_type == "q8_0" else mixed).reshape(end - first, -1)
        return Tensor(out.shape[1], q.rows, out)

    def delta_net(self, parts: Sequence[Tensor], net: api.DeltaNet, memory: api.LayerMemory) -> Tensor:
        out = delta_net([part.data for part in parts], net, memory)
        return Tensor(out.shape[1], parts[0].rows, out)

    def state_space(self, parts: Sequence[Tensor], net: api.StateSpace, memory: api.LayerMemory) -> Tensor:
        out = state_space([part.data for part in parts], net, memory)
        return Tensor(out.shape[1], parts[0].rows, out)

    def gate_rows(self, x: Tensor, scores: Tensor) -> Tensor:
        return Tensor(x.width, x.rows, x.data * sigmoid(scores.data))

    def scale_queries(self, q: Tensor, attn_scaling: api.AttentionScaling, step: api.StepInputs) -> Tensor:
        n_periods = (step.positions[: step.n_tokens, None] + attn_scaling.offset) // attn_scaling.period
        factors = 1 + np.float32(attn_scaling.beta) * np.log1p(n_periods.astype(np.float32))
        return Tensor(q.width, q.rows, q.data * factors)

    def gather_rows(self, x: Tensor, step: api.StepInputs) -> Tensor:
        return Tensor(x.width, Rows.LOGITS, x.data[step.logit_rows[: step.n_rows]])

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return Tensor(x.width, x.rows, x.data * np.float32(factor))

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return Tensor(x.width, x.rows, np.float32(cap) * np.tanh(x.data / np.float32(cap)))

    def clip(self, x: Tensor, limit: float) -> Tensor:
        return Tensor(x.width, x.rows, np.clip(x.data, np.float32(-limit), np.float32(limit)))


# ---- the arithmetic -------------------------------------------------------------------------------------------


def rms_norm(x: Floats, gain: Floats, eps: float) -> Floats:
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    normed: Floats = x / np.sqrt(mean + np.float32(eps)) * gain
    return normed


def multiply(x: Floats, matrix: DenseMatrix, index: int | None = None) -> Floats:
    """x @ w.T for a matrix or one of a stack, summed in f64 so that the oracle's own rounding decides no comparison."""
    w = matrix.values if index is None else matrix.values[index]
    x = round_to_int8(x) if matrix.int8 else x
    return (x.astype(np.float64) @ w.T.astype(np.float64)).astype(np.float32)


def round_to_int8(x: Floats) -> Floats:
    """What x becomes after a trip through int8 blocks."""
    blocks = x.reshape(len(x), x.shape[1] // INT8_BLOCK, INT8_BLOCK)
    step = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(127)
    normal = ~(step < np.finfo(np.float32).tiny)
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=normal)
    rounded: Floats = (np.rint(blocks * inverse) * step).reshape(x.shape)
    return rounded


def softmax(x: Floats) -> Floats:
    p = np.exp(x - x.max())
    shares: Floats = p / p.sum()
    return shares


def sigmoid(x: Floats) -> Floats:
    return (1 / (1 + np.exp(-x))).astype(np.float32)


def silu(x: Floats) -> Floats:
    with np.errstate(over="ignore"):  # far below zero the quotient is zero, as it should be
        y: Floats = x / (1 + np.exp(-x))
    return y


def gelu_tanh(x: Floats) -> Floats:
    y: Floats = 0.5 * x * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)))
    return y


def gelu(x: Floats) -> Floats:
    erf = np.vectorize(math.erf, otypes=[np.float32])
    y: Floats = 0.5 * x * (1 + erf(x / np.float32(math.sqrt(2))))
    return y


ACTIVATIONS: dict[api.Activation, Callable[[Floats], Floats]] = {"silu": silu, "gelu_tanh": gelu_tanh, "gelu": gelu}
ACTIVATIONS |= {"sigmoid": sigmoid, "relu2": lambda x: np.square(np.maximum(x, 0))}


def activated(gate: Floats, up: Floats | None, act: api.Activation) -> Floats:
    if act == "clamped_swiglu":
        assert up is not None
        g = np.minimum(gate, np.float32(7))
        u = np.clip(up, np.float32(-7), np.float32(7))
        clamped: Floats = g * sigmoid(np.float32(1.702) * g) * (u + np.float32(1))
        return clamped
    return ACTIVATIONS[act](gate) if up is None else ACTIVATIONS[act](gate) * up


def of_expert(x: Floats, linear: api.Linear, expert: int) -> Floats:
    """One of the linears of a stack."""
    y = multiply(x, linear.weight.data, expert)
    n = linear.weight.n_rows
    return y if linear.bias is None else y + linear.bias.data[expert * n : (expert + 1) * n]


def route(scores: Floats, routing: api.Routing) -> list[tuple[int, np.float32]]:
    """(expert, share) pairs, best first."""
    if routing.jitter:
        return mixed_sparsely(scores, routing)
    p: Floats = sigmoid(scores) if routing.sigmoid else softmax(scores)
    chosen_by = p if routing.bias is None else p + routing.bias.data
    chosen_by = in_best_groups(chosen_by, routing) if routing.n_groups else chosen_by
    best = np.argsort(-chosen_by, kind="stable")[: routing.n_active]
    total = p[best].sum() if routing.renormalise else np.float32(1)
    factors = np.ones_like(p) if routing.factors is None else routing.factors.data
    return [(int(e), p[e] / total * np.float32(routing.scale) * factors[e]) for e in best]


def mixed_sparsely(scores: Floats, routing: api.Routing) -> list[tuple[int, np.float32]]:
    """The same where experts are chosen one after the other, each against those that are nearly as good."""
    left = scores.copy()
    found = []
    for _ in range(routing.n_active):
        best = int(left.argmax())
        near = (left[best] - scores) / np.maximum(np.abs(scores), left[best]) <= np.float32(2 * routing.jitter)
        shares = np.exp(np.where(near, left, -np.inf) - left[best])
        found.append((best, np.float32(1) / shares.sum()))
        left[best] = -np.inf
    return found


def in_best_groups(scores: Floats, routing: api.Routing) -> Floats:
    """The scores, but for those of experts outside the best groups, which become -inf."""
    groups = scores.reshape(routing.n_groups, -1)
    worth = np.sort(groups, axis=1)[:, -routing.group_top :].sum(axis=1)
    best = np.argsort(-worth, kind="stable")[: routing.n_best_groups]
    kept = np.full_like(groups, -np.inf)
    kept[best] = groups[best]
    return kept.reshape(-1)


def split_heads(x: Floats, head_dim: int) -> Floats:
    return x.reshape(len(x), x.shape[1] // head_dim, head_dim)


def rope(heads: Floats, cos_sin: Floats, style: api.RopeStyle) -> Floats:
    """Rotate `[n, heads, head_dim]` by `[n, cos | sin]`."""
    half = cos_sin.shape[1] // 2
    cos = cos_sin[:, None, :half]
    sin = cos_sin[:, None, half:]
    first, second = (
        (slice(0, half), slice(half, 2 * half)) if style == "halves" else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    )
    out = heads.copy()
    out[..., first] = heads[..., first] * cos - heads[..., second] * sin
    out[..., second] = heads[..., second] * cos + heads[..., first] * sin
    return out


def hadamard(heads: Floats) -> Floats:
    """Heads `[n, heads, head_dim]` rotated by a Hadamard matrix, which is its own inverse."""
    n = api.rotated_together(heads.shape[2])
    x = heads.reshape(-1, n)
    stride = 1
    while stride < n:
        pairs = x.reshape(-1, n // (2 * stride), 2, stride)
        x = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(-1, n)
        stride *= 2
    rotated: Floats = (x * np.float32(n**-0.5)).reshape(heads.shape)
    return rotated


PLAIN: dict[str, type[np.floating[Any]]] = {"f32": np.float32, "f16": np.float16}


def encode(heads: Floats, dtype: str) -> Bytes:
    """`[n, heads, head_dim]` as a KV store keeps them: [n, heads, bytes of one head]."""
    if dtype in PLAIN:
        return np.ascontiguousarray(heads).astype(PLAIN[dtype]).view(np.uint8)
    heads = hadamard(heads)
    blocks = heads.reshape(*heads.shape[:2], -1, KV_BLOCK)
    scales = (np.abs(blocks).max(axis=3) / np.float32(127)).astype(np.float16)
    step = scales.astype(np.float32)[..., None]
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    codes = np.clip(np.rint(blocks * inverse), -127, 127).astype(np.int8).reshape(heads.shape)
    return np.concatenate([codes.view(np.uint8), scales.view(np.uint8)], axis=2)


def decode(stored: Bytes, dtype: str) -> Floats:
    """What `encode` stored; q8_0 heads are still rotated."""
    stored = np.ascontiguousarray(stored)
    if dtype in PLAIN:
        return stored.view(PLAIN[dtype]).astype(np.float32)
    n_codes = stored.shape[2] * KV_BLOCK // (KV_BLOCK + 2)
    codes = np.ascontiguousarray(stored[..., :n_codes]).view(np.int8).astype(np.float32)
    scales = np.ascontiguousarray(stored[..., n_codes:]).view(np.float16).astype(np.float32)
    return codes * np.repeat(scales, KV_BLOCK, axis=2)


def page_slots(pages: Sequence[int], page_size: int) -> np.ndarray:
    slots: np.ndarray = (np.array(pages, np.int64)[:, None] * page_size + np.arange(page_size)).reshape(-1)
    return slots


def sequence_slots(pages: np.ndarray, positions: np.ndarray, page_size: int) -> np.ndarray:
    slots: np.ndarray = pages[positions // page_size] * page_size + positions % page_size
    return slots


def mask(distance: np.ndarray, spec: api.AttentionSpec) -> np.ndarray:
    """True where a query must not look: what is outside the window, and the future if it is causal."""
    window = spec.window or sys.maxsize
    hidden: np.ndarray = (distance <= -window) | (distance >= (1 if spec.causal else window))
    return hidden


def attend(queries: Floats, keys: Floats, values: Floats, distance: np.ndarray, spec: api.AttentionSpec) -> Floats:
    """Softmax attention of `[n, q_heads, d]` over `[length, kv_heads, d]`, grouped heads sharing keys.

    `distance` is how far each key stands behind (above 0: ahead of) each query.
    """
    group = queries.shape[1] // keys.shape[1]
    keys = np.repeat(keys, group, axis=1)
    values = np.repeat(values, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", queries, keys) * np.float32(spec.scale)
    if spec.softcap:
        scores = np.float32(spec.softcap) * np.tanh(scores / np.float32(spec.softcap))
    if spec.slopes:
        scores = scores + spec.slopes.data[:, None, None] * distance.astype(np.float32)
    scores = np.where(mask(distance, spec)[None], -np.inf, scores)
    sinks = np.float32(-np.inf) if spec.sinks is None else spec.sinks.data[:, None, None]
    top = np.maximum(scores.max(axis=2, keepdims=True), sinks)
    p = np.exp(scores - top)
    p /= p.sum(axis=2, keepdims=True) + np.exp(sinks - top)
    mixed: Floats = np.einsum("hqk,khd->qhd", p, values).astype(np.float32)
    return mixed
