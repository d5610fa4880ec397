"""Layers of a codec whose rows see those shortly before them."""

from typing import NamedTuple

import numpy as np

from tahr.speech.codec.activations import rms_norm, silu
from tahr.speech.codec.sizes import LayerSizes
from tahr.speech.codec.tensors import Floats, Parts


class Seen(NamedTuple):
    """Keys and values of the last rows: [n, n_heads, head_dim]."""

    keys: Floats
    values: Floats


class WindowedLayer:
    """Attention within a window, then a gated MLP; what either adds is scaled by channel, in its last matrix."""

    def __init__(self, sizes: LayerSizes, parts: Parts):
        width = sizes.width
        inner = sizes.n_heads * sizes.head_dim
        attention = parts.at("self_attn")
        mlp = parts.at("mlp")
        self.sizes = sizes
        self.norm = parts.get("input_layernorm.weight", width)
        self.mlp_norm = parts.get("post_attention_layernorm.weight", width)
        self.qkv = np.concatenate([attention.matrix(f"{name}_proj", inner, width) for name in "qkv"], axis=1)
        self.out = attention.matrix("o_proj", width, inner) * parts.get("self_attn_layer_scale.scale", width)
        self.gate = mlp.matrix("gate_proj", sizes.ffn_width, width)
        self.up = mlp.matrix("up_proj", sizes.ffn_width, width)
        self.down = mlp.matrix("down_proj", width, sizes.ffn_width) * parts.get("mlp_layer_scale.scale", width)

    def start(self) -> Seen:
        nothing = np.zeros((0, self.sizes.n_heads, self.sizes.head_dim), np.float32)
        return Seen(nothing, nothing)

    def run(self, x: Floats, seen: Seen, turns: tuple[Floats, Floats]) -> tuple[Floats, Seen]:
        """The rows of x, and what later ones see of them."""
        sizes = self.sizes
        qkv = (rms_norm(x, self.norm, sizes.eps) @ self.qkv).reshape(len(x), 3, sizes.n_heads, sizes.head_dim)
        queries = turned(qkv[:, 0], turns)
        keys = np.concatenate([seen.keys, turned(qkv[:, 1], turns)])
        values = np.concatenate([seen.values, qkv[:, 2]])
        x = x + self._attended(queries, keys, values) @ self.out
        normed = rms_norm(x, self.mlp_norm, sizes.eps)
        x = x + (silu(normed @ self.gate) * (normed @ self.up)) @ self.down
        first = max(0, len(keys) - sizes.window + 1)
        return x, Seen(keys[first:].copy(), values[first:].copy())

    def _attended(self, queries: Floats, keys: Floats, values: Floats) -> Floats:
        n = len(queries)
        behind = np.arange(len(keys) - n, len(keys))[:, None] - np.arange(len(keys))
        hidden = (behind < 0) | (behind >= self.sizes.window)
        scores = queries.transpose(1, 0, 2) @ keys.transpose(1, 2, 0) * np.float32(self.sizes.head_dim**-0.5)
        scores[:, hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        found: Floats = (weights @ values.transpose(1, 0, 2)).transpose(1, 0, 2).reshape(n, -1)
        return found


def turns_of(begin: int, n: int, sizes: LayerSizes) -> tuple[Floats, Floats]:
    """Cosines and sines of positions from `begin` on: [n, 1, head_dim / 2] each."""
    half = sizes.head_dim // 2
    rates = (1 / sizes.rope_theta ** (np.arange(half) / half)).astype(np.float32)
    angles = np.arange(begin, begin + n, dtype=np.float32)[:, None, None] * rates
    return np.cos(angles), np.sin(angles)


def turned(x: Floats, turns: tuple[Floats, Floats]) -> Floats:
    """Rope, whose pairs are the halves of a head."""
    cosines, sines = turns
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cosines - high * sines, high * cosines + low * sines], axis=-1)
