"""Rope, masks and softmax attention of one sequence."""

import sys

import numpy as np

from tahr.backends.api import (
    AttentionSpec,
    Floats,
    LayerMemory,
    RopeStyle,
    Rotation,
    kv_sides,
    stored_head_bytes,
)
from tahr.backends.reference.arithmetic import F32, rms_norm
from tahr.backends.reference.kv_rows import decode, encode, hadamard, sequence_slots


def split_heads(x: Floats, head_dim: int) -> Floats:
    n_heads = x.shape[1] // head_dim
    return x.reshape(len(x), n_heads, head_dim)


def rope(heads: Floats, cos_sin: Floats, style: RopeStyle) -> Floats:
    """Rotate `[n, heads, head_dim]` by `[n, cos | sin]`."""
    half = cos_sin.shape[1] // 2
    cos = cos_sin[:, None, :half]
    sin = cos_sin[:, None, half:]
    if style == "halves":
        first = slice(0, half)
        second = slice(half, 2 * half)
    else:
        first = slice(0, 2 * half, 2)
        second = slice(1, 2 * half, 2)
    x = heads[..., first]
    y = heads[..., second]
    out = heads.copy()
    out[..., first] = x * cos - y * sin
    out[..., second] = y * cos + x * sin
    return out


def prepare_queries(q: Floats, rotation: Rotation, key_type: str) -> Floats:
    """Norm and rotate query heads, with the Hadamard matrix too where keys are stored rotated."""
    if norms := rotation.norms:
        q = rms_norm(q, norms.query.data, norms.eps)
    q = rope(q, rotation.cos_sin.data, rotation.style)
    return hadamard(q) if key_type == "q8_0" else q


def prepare_keys(k: Floats, rotation: Rotation, key_type: str) -> Floats:
    """Norm and rotate key heads; blocks of q8_0 round finer without the mean of all keys."""
    if norms := rotation.norms:
        k = rms_norm(k, norms.key.data, norms.eps)
    k = rope(k, rotation.cos_sin.data, rotation.style)
    if key_type == "q8_0" and rotation.key_mean:
        k = k - rotation.key_mean.data.reshape(k.shape[1:])
    return k


def store_heads(heads: list[Floats], memory: LayerMemory) -> None:
    """Write the keys of a step's tokens, and their values unless these are parts of the keys."""
    types = kv_sides(memory.store.dtype)
    stored = [encode(side, dtype) for side, dtype in zip(heads, types, strict=False)]
    slots = memory.slot_mapping[: memory.step.n_tokens]
    memory.data[slots] = np.concatenate(stored, axis=2)


def stored_heads(memory: LayerMemory, slots: np.ndarray) -> tuple[Floats, Floats]:
    """The keys and values in some slots."""
    shape = memory.kv_shape
    key_type, value_type = kv_sides(memory.store.dtype)
    key_bytes = stored_head_bytes(key_type, shape.head_dim)
    rows = memory.data[slots]
    keys = decode(rows[..., :key_bytes], key_type)
    if shape.latent:
        return keys, keys[..., -shape.latent :]
    return keys, decode(rows[..., key_bytes:], value_type)


def attend_sequence(queries: Floats, seq: int, spec: AttentionSpec, memory: LayerMemory) -> Floats:
    """Attention of a sequence's queries `[n, q_heads, d]` over the keys it can see: `[n, q_heads, value_dim]`."""
    step = memory.step
    positions = step.positions[step.query_start[seq] : step.query_start[seq + 1]]
    begin = max(0, positions[0] - spec.window + 1) if spec.window else 0
    seen = np.arange(begin, memory.seq_lens[seq])
    slots = sequence_slots(memory.page_table[seq], seen, memory.store.page_size)
    keys, values = stored_heads(memory, slots)
    distance = seen[None, :] - positions[:, None]
    hidden = mask(distance, spec)
    if spec.chunked:
        hidden |= seen[None, :] // spec.window != positions[:, None] // spec.window
    sums = attend(queries, keys, values, distance, hidden, spec)
    is_rotated = kv_sides(memory.store.dtype)[1] == "q8_0"
    return hadamard(sums) if is_rotated else sums


def mask(distance: np.ndarray, spec: AttentionSpec) -> np.ndarray:
    """True where a query must not look: outside the window, and at the future if it is causal."""
    window = spec.window or sys.maxsize
    last = 0 if spec.causal else window - 1
    hidden: np.ndarray = (distance <= -window) | (distance > last)
    return hidden


def attend(
    queries: Floats,
    keys: Floats,
    values: Floats,
    distance: np.ndarray,
    hidden: np.ndarray,
    spec: AttentionSpec,
) -> Floats:
    """Softmax attention of `[n, q_heads, d]` over `[length, kv_heads, d]`, grouped heads sharing keys.

    `distance` is how far each key stands behind (above 0: ahead of) each query, `hidden` where it must not look.
    """
    group = queries.shape[1] // keys.shape[1]
    keys = np.repeat(keys, group, axis=1)
    values = np.repeat(values, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", queries, keys) * F32(spec.scale)
    if spec.softcap:
        cap = F32(spec.softcap)
        scores = cap * np.tanh(scores / cap)
    if spec.slopes:
        slopes = spec.slopes.data[:, None, None]
        scores = scores + slopes * distance.astype(F32)
    scores = np.where(hidden[None], -np.inf, scores)
    sinks = F32(-np.inf)
    if spec.sinks:
        sinks = spec.sinks.data[:, None, None]
    top = np.maximum(scores.max(axis=2, keepdims=True), sinks)
    p = np.exp(scores - top)
    total = p.sum(axis=2, keepdims=True)
    p /= total + np.exp(sinks - top)
    sums: Floats = np.einsum("hqk,khd->qhd", p, values)
    return sums.astype(F32)
