"""The oracle: every op in plain NumPy, obeying the numerics of the interface and slow on purpose."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tahr.backends.api import (
    INT8_BLOCK,
    KV_BLOCK,
    Activation,
    Backend,
    Bytes,
    Floats,
    HeadNorms,
    KVShape,
    KVStore,
    Plan,
    Rope,
    RopeStyle,
    Routing,
    Rows,
    StepInputs,
    StepLimits,
    Tensor,
    Vector,
    Weight,
    layer_groups,
    stored_head_bytes,
)
from tahr.weights.tensor import HostTensor


@dataclass(frozen=True, slots=True)
class Matrix:
    """Dequantised values, and whether activations must be rounded to int8 before they meet them."""

    values: Floats
    int8: bool


class ReferencePlan:
    """Remembers the function; running calls it again, because the inputs have changed since."""

    def __init__(self, step: Callable[[], Tensor]):
        self._step = step
        self.result = step()

    def run(self) -> None:
        self.result = self._step()


class ReferenceBackend(Backend):
    name = "reference"
    summary = "reference: NumPy, slow on purpose"
    kv_dtypes = ("f32", "f16", "q8_0")

    # ---- memory -----------------------------------------------------------------------------------------------

    def weight(self, tensor: HostTensor) -> Weight:
        values = tensor.dense()
        stack, (n_rows, n_cols) = math.prod(values.shape[:-2]), values.shape[-2:]
        matrix = Matrix(values, int8=tensor.format.block > 1)
        return Weight(tensor.name, tensor.format.name, "numpy", n_rows, n_cols, values.nbytes, matrix, stack)

    def vector(self, values: Floats) -> Vector:
        return Vector(len(values), np.array(values, np.float32))

    def tensor(self, values: Floats) -> Tensor:
        return Tensor(values.shape[1], Rows.FIXED, np.array(values, np.float32))

    def read(self, tensor: Tensor) -> Floats:
        rows: Floats = tensor.data
        return rows

    def step_inputs(self, limits: StepLimits) -> StepInputs:
        return StepInputs.empty(limits)

    def kv_store(
        self,
        shapes: Sequence[KVShape],
        n_pages: Sequence[int],
        page_size: int,
        dtype: str,
        groups: Sequence[Sequence[int]] | None = None,
    ) -> KVStore:
        group_of = layer_groups(len(shapes), groups)
        layers = tuple(
            np.zeros((2, n_pages[group] * page_size, s.n_heads, stored_head_bytes(dtype, s.head_dim)), np.uint8)
            for s, group in zip(shapes, group_of, strict=True)
        )
        n_bytes = sum(layer.nbytes for layer in layers)
        return KVStore(tuple(shapes), tuple(n_pages), group_of, page_size, dtype, n_bytes, layers)

    def read_pages(self, kv: KVStore, pages: Sequence[int], group: int = 0) -> list[Bytes]:
        slots = page_slots(pages, kv.page_size)
        return [layer[:, slots] for layer in kv.members(group)]

    def write_pages(self, kv: KVStore, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None:
        slots = page_slots(pages, kv.page_size)
        for layer, values in zip(kv.members(group), layers, strict=True):
            layer[:, slots] = values

    # ---- running ----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        pass  # ops run where they are called

    def record(self, step: Callable[[], Tensor]) -> Plan:
        return ReferencePlan(step)

    # ---- ops --------------------------------------------------------------------------------------------------

    def embed(self, table: Weight, step: StepInputs, scale: float = 1.0) -> Tensor:
        rows = table.data.values[step.ids[: step.n_tokens]]
        return Tensor(table.n_cols, Rows.TOKENS, rows * np.float32(scale))

    def rms_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        return Tensor(x.width, x.rows, rms_norm(x.data, gain.data, eps))

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return Tensor(x.width, x.rows, x.data + np.float32(scale) * y.data)

    def linear(self, x: Tensor, w: Weight, bias: Vector | None = None) -> Tensor:
        y = multiply(x.data, w.data.values, w.data.int8)
        return Tensor(w.n_rows, x.rows, y if bias is None else y + bias.data)

    def activate(self, gate: Tensor, up: Tensor, act: Activation) -> Tensor:
        return Tensor(gate.width, gate.rows, ACTIVATIONS[act](gate.data) * up.data)

    def experts(
        self, x: Tensor, scores: Tensor, gate: Weight, up: Weight, down: Weight, routing: Routing, act: Activation
    ) -> Tensor:
        out = np.zeros((len(x.data), down.n_rows), np.float32)
        for row, row_scores in enumerate(scores.data):
            for expert, share in route(row_scores, routing):
                one = x.data[row : row + 1]
                g = multiply(one, gate.data.values[expert], gate.data.int8)
                u = multiply(one, up.data.values[expert], up.data.int8)
                y = multiply(ACTIVATIONS[act](g) * u, down.data.values[expert], down.data.int8)
                out[row] += share * y[0]
        return Tensor(down.n_rows, x.rows, out)

    def cos_sin(self, step: StepInputs, rope: Rope) -> Tensor:
        angle = step.positions[: step.n_tokens, None].astype(np.float32) * rope.inv_freq
        turned = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * np.float32(rope.scale)
        return Tensor(turned.shape[1], Rows.TOKENS, turned.astype(np.float32))

    def rope_and_cache(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        angles: Tensor,
        style: RopeStyle,
        step: StepInputs,
        kv: KVStore,
        layer: int,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        head_dim = kv.shapes[layer].head_dim
        heads = {"q": split_heads(q.data, head_dim), "k": split_heads(k.data, head_dim)}
        if norms:
            heads["q"] = rms_norm(heads["q"], norms.query.data, norms.eps)
            heads["k"] = rms_norm(heads["k"], norms.key.data, norms.eps)
        slots = step.slot_mapping[kv.group_of[layer], : step.n_tokens]
        kv.layers[layer][0, slots] = encode(rotate(heads["k"], angles.data, style), kv.dtype)
        kv.layers[layer][1, slots] = encode(split_heads(v.data, head_dim), kv.dtype)
        return Tensor(q.width, q.rows, rotate(heads["q"], angles.data, style).reshape(q.data.shape))

    def attention(
        self, q: Tensor, step: StepInputs, kv: KVStore, layer: int, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Tensor:
        out = np.zeros_like(q.data)
        for seq in range(step.n_seqs):
            first, end = step.query_start[seq], step.query_start[seq + 1]
            here = step.positions[first:end]
            seen = np.arange(max(0, here[0] - window + 1) if window else 0, step.seq_lens[seq])
            slots = text_slots(step.page_table[kv.group_of[layer], seq], seen, kv.page_size)
            keys, values = (decode(kv.layers[layer][side, slots], kv.dtype) for side in (0, 1))
            queries = split_heads(q.data[first:end], kv.shapes[layer].head_dim)
            hidden = mask(here, seen, window)
            out[first:end] = attend(queries, keys, values, hidden, scale, softcap).reshape(end - first, -1)
        return Tensor(q.width, q.rows, out)

    def gather_rows(self, x: Tensor, step: StepInputs) -> Tensor:
        return Tensor(x.width, Rows.PICKED, x.data[step.logit_rows[: step.n_rows]])

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return Tensor(x.width, x.rows, x.data * np.float32(factor))

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return Tensor(x.width, x.rows, np.float32(cap) * np.tanh(x.data / np.float32(cap)))


# ---- the arithmetic -------------------------------------------------------------------------------------------


def rms_norm(x: Floats, gain: Floats, eps: float) -> Floats:
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    normed: Floats = x / np.sqrt(mean + np.float32(eps)) * gain
    return normed


def multiply(x: Floats, w: Floats, int8: bool) -> Floats:
    """x @ w.T, summed in f64 so that the oracle's own rounding never decides a comparison."""
    x = round_to_int8(x) if int8 else x
    return (x.astype(np.float64) @ w.T.astype(np.float64)).astype(np.float32)


def round_to_int8(x: Floats) -> Floats:
    """What x becomes after a trip through int8 blocks."""
    blocks = x.reshape(len(x), x.shape[1] // INT8_BLOCK, INT8_BLOCK)
    step = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    rounded: Floats = (np.rint(blocks * inverse) * step).reshape(x.shape)
    return rounded


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


ACTIVATIONS: dict[Activation, Callable[[Floats], Floats]] = {"silu": silu, "gelu_tanh": gelu_tanh, "gelu": gelu}


def route(scores: Floats, routing: Routing) -> list[tuple[int, np.float32]]:
    """(expert, share) pairs, best first."""
    p = np.exp(scores - scores.max())
    p /= p.sum()
    best = np.argsort(-p, kind="stable")[: routing.n_active]
    total = p[best].sum() if routing.renormalise else np.float32(1)
    return [(int(e), p[e] / total) for e in best]


def split_heads(x: Floats, head_dim: int) -> Floats:
    return x.reshape(len(x), x.shape[1] // head_dim, head_dim)


def rotate(heads: Floats, angles: Floats, style: RopeStyle) -> Floats:
    """Rotate `[n, heads, head_dim]` by `[n, cos | sin]`."""
    half = angles.shape[1] // 2
    cos, sin = angles[:, None, :half], angles[:, None, half:]
    first, second = (
        (slice(0, half), slice(half, 2 * half)) if style == "halves" else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    )
    out = heads.copy()
    out[..., first] = heads[..., first] * cos - heads[..., second] * sin
    out[..., second] = heads[..., second] * cos + heads[..., first] * sin
    return out


PLAIN: dict[str, type[np.floating[Any]]] = {"f32": np.float32, "f16": np.float16}


def encode(heads: Floats, dtype: str) -> Bytes:
    """`[n, heads, head_dim]` as a KV store keeps them: [n, heads, bytes of one head]."""
    if dtype in PLAIN:
        return np.ascontiguousarray(heads).astype(PLAIN[dtype]).view(np.uint8)
    blocks = heads.reshape(*heads.shape[:2], -1, KV_BLOCK)
    scales = (np.abs(blocks).max(axis=3) / np.float32(127)).astype(np.float16)
    step = scales.astype(np.float32)[..., None]
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    codes = np.clip(np.rint(blocks * inverse), -127, 127).astype(np.int8).reshape(heads.shape)
    return np.concatenate([codes.view(np.uint8), scales.view(np.uint8)], axis=2)


def decode(stored: Bytes, dtype: str) -> Floats:
    """The reverse of `encode`."""
    if dtype in PLAIN:
        return stored.view(PLAIN[dtype]).astype(np.float32)
    n_codes = stored.shape[2] * KV_BLOCK // (KV_BLOCK + 2)
    codes = np.ascontiguousarray(stored[..., :n_codes]).view(np.int8).astype(np.float32)
    scales = np.ascontiguousarray(stored[..., n_codes:]).view(np.float16).astype(np.float32)
    return codes * np.repeat(scales, KV_BLOCK, axis=2)


def page_slots(pages: Sequence[int], page_size: int) -> np.ndarray:
    slots: np.ndarray = (np.array(pages, np.int64)[:, None] * page_size + np.arange(page_size)).reshape(-1)
    return slots


def text_slots(pages: np.ndarray, positions: np.ndarray, page_size: int) -> np.ndarray:
    slots: np.ndarray = pages[positions // page_size] * page_size + positions % page_size
    return slots


def mask(positions: np.ndarray, seen: np.ndarray, window: int) -> np.ndarray:
    """True where a query must not look: the future, and what has left the window."""
    at, here = seen[None, :], positions[:, None]
    hidden: np.ndarray = at > here
    return hidden | (at <= here - window) if window else hidden


def attend(queries: Floats, keys: Floats, values: Floats, hidden: np.ndarray, scale: float, softcap: float) -> Floats:
    """Softmax attention of `[n, q_heads, d]` over `[length, kv_heads, d]`, grouped heads sharing keys."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", queries, keys) * np.float32(scale)
    if softcap:
        scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
    scores = np.where(hidden[None], -np.inf, scores)
    p = np.exp(scores - scores.max(axis=2, keepdims=True))
    p /= p.sum(axis=2, keepdims=True)
    mixed: Floats = np.einsum("hqk,khd->qhd", p, values).astype(np.float32)
    return mixed
