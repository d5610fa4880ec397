"""Attention over the pages of a sequence."""

from dataclasses import replace
from typing import Literal

from tahr.backends.api import AttentionSpec, Extras, HeadNorms, KVShape, Rotation, StepInputs, Tensor, Vector
from tahr.models.config.record import ModelConfig
from tahr.models.config.rope import RopeConfig, mean_rotated
from tahr.models.parts.stream import ForwardPass, NormedInput
from tahr.models.parts.weights import HeadLayerNorm, Norm, Weights

# Norms of queries and keys: none, of each head, of each without a gain, of all together, layer norms of each head.
QkNorm = Literal["", "heads", "units", "rows", "layers"]


class Attention:
    """Attention over the sequence's pages, with grouped heads, rope and, in some families, norms of queries and keys,
    sinks, or slopes in place of rope. It is causal, but for encoders and, in some families, tokens of images."""

    def __init__(
        self,
        cfg: ModelConfig,
        layer: int,
        w: Weights,
        qk_norm: QkNorm = "",
        sinks: bool = False,
        width_in: int = 0,  # width of the rows it reads; 0: the model's
    ):
        kind = cfg.kinds[layer]
        self.layer = layer
        self.rope = kind.rope
        self.style = cfg.rope_style
        self.memory = KVShape(cfg.n_kv_heads, cfg.head_dim)
        self.spec = attention_spec(cfg, layer, w, sinks)
        w.backend.check_attention(self.spec, self.memory, cfg.n_heads)
        self.images_both_ways = cfg.chat_vision is not None and cfg.chat_vision.place.both_ways

        self.gated = w.has("g_proj.weight")
        self.read_matrices(cfg, w, width_in or cfg.width)

        self.norms = head_norms(cfg, w, qk_norm == "heads") if qk_norm in ("heads", "units") else None
        self.row_norms = row_norms(cfg, w, qk_norm)
        self.clip = cfg.qkv_clip
        self.attn_scaling = cfg.attn_scaling if kind.attn_scaled else None
        self.key_mean = key_mean(cfg, kind.rope, w) if self.ignores_constants(cfg, qk_norm) else None

    def read_matrices(self, cfg: ModelConfig, w: Weights, width_in: int) -> None:
        """The products before and after attention."""
        q_width = cfg.n_heads * cfg.head_dim
        kv_width = cfg.n_kv_heads * cfg.head_dim
        heights = {"q_proj": q_width, "k_proj": kv_width, "v_proj": kv_width}
        if self.gated:
            heights["g_proj"] = q_width
        self.qkv = w.joined(heights, width_in, cfg.qkv_bias)
        self.out = w.linear("o_proj", cfg.width, q_width, cfg.out_bias)
        self.sub_norm = w.norm("attn_sub_norm", q_width) if w.has("attn_sub_norm.weight") else None

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        b = run.backend
        qkv = self.prepared(run, x.linears(self.qkv))
        gate = qkv.pop() if self.gated else None
        mixed = self.attended(run, qkv)
        if self.sub_norm:
            mixed = self.sub_norm.apply(b, mixed)
        if gate:
            mixed = b.activate(gate, mixed, "sigmoid")
        return b.linear(mixed, self.out)

    def attended(self, run: ForwardPass, qkv: list[Tensor]) -> Tensor:
        """Rope, cache write and attention; `qkv` is empty afterwards."""
        b = run.backend
        memory = run.memory(self.layer)
        spec = self.spec_in(run.step)
        rotation = Rotation(run.cos_sin(self.rope), self.style, self.norms, self.key_mean)
        if self.attn_scaling is None:
            return b.rope_attention(qkv, rotation, spec, memory)
        q = b.rope_and_cache(qkv, rotation, memory)
        qkv.clear()
        q = b.scale_queries(q, self.attn_scaling, run.step)
        return b.attention(q, spec, memory)

    def spec_in(self, step: StepInputs) -> AttentionSpec:
        """Where tokens of images see each other, a step with images has of each the rest of one, or a single token."""
        has_images = bool(step.limits.extras & Extras.ROWS)
        if self.images_both_ways and has_images:
            return replace(self.spec, causal=False)
        return self.spec

    def ignores_constants(self, cfg: ModelConfig, qk_norm: QkNorm) -> bool:
        """Whether keys have a bias that only adds a constant to all scores of a query."""
        return cfg.qkv_bias and not qk_norm and not self.spec.softcap and self.spec.sinks is None

    def prepared(self, run: ForwardPass, qkv: list[Tensor]) -> list[Tensor]:
        """Hook for families that change queries, keys and values before rope."""
        if self.clip:
            qkv = [run.backend.clip(x, self.clip) for x in qkv]
        for i, norm in enumerate(self.row_norms):
            qkv[i] = norm.apply(run.backend, qkv[i])
        return qkv


def attention_spec(cfg: ModelConfig, layer: int, w: Weights, sinks: bool) -> AttentionSpec:
    """The reach of a layer's attention, and how it weighs."""
    kind = cfg.kinds[layer]
    return AttentionSpec(
        cfg.attn_scale,
        kind.window,
        cfg.attn_softcap,
        not cfg.bidirectional,
        sinks=w.vector("sinks.weight", cfg.n_heads) if sinks else None,
        slopes=w.constants(alibi_slopes(cfg)) if cfg.alibi else None,
        chunked=kind.chunked,
        whole=cfg.bidirectional,
    )


def layer_normed_heads(cfg: ModelConfig, w: Weights) -> QkNorm:
    """The norms of families of which some sizes have them; a GGUF file says so by its tensors alone."""
    return "layers" if cfg.qk_layer_norms or w.has("q_norm.weight") else ""


def row_norms(cfg: ModelConfig, w: Weights, qk_norm: QkNorm) -> tuple[Norm | HeadLayerNorm, ...]:
    """Norms of queries and keys that are ops of their own."""
    made: list[Norm | HeadLayerNorm] = []
    heads = {"q_norm": cfg.n_heads, "k_norm": cfg.n_kv_heads}
    for name, n_heads in heads.items():
        if qk_norm == "layers":
            made.append(w.head_layer_norm(name, n_heads))
        if qk_norm == "rows":
            made.append(w.norm(name, n_heads * cfg.head_dim))
    return tuple(made)


def head_norms(cfg: ModelConfig, w: Weights, has_gains: bool) -> HeadNorms:
    if not has_gains:
        ones = w.constants([1.0] * cfg.head_dim)
        return HeadNorms(ones, ones, cfg.norm_eps)
    query = w.norm("q_norm", cfg.head_dim)
    key = w.norm("k_norm", cfg.head_dim)
    return HeadNorms(query.gain, key.gain, cfg.norm_eps)


def alibi_slopes(cfg: ModelConfig) -> list[float]:
    """2^(-alibi / n), 2^(-2 * alibi / n), ... for n heads. Where n is no power of two, the slopes of the next one, of
    which every other come last. A rank has those of its heads."""
    (first, n_heads) = cfg.head_part or (0, cfg.n_heads)
    n = 1 << (n_heads - 1).bit_length()
    steepest = cfg.attn_scale if cfg.alibi_scaled else 1.0
    powers = [cfg.alibi * (i + 1) / n for i in range(n)]
    slopes = [steepest * 2**-power for power in powers]
    in_order = slopes if n == n_heads else slopes[1::2] + slopes[::2]
    return in_order[first : first + cfg.n_heads]


def key_mean(cfg: ModelConfig, rope: RopeConfig, w: Weights) -> Vector:
    """The part of keys that biases make equal for all tokens: often far more than the rest, see `Rotation`."""
    width = cfg.n_kv_heads * cfg.head_dim
    bias = w.find("k_proj.bias", (width,)).dense()
    heads = bias.reshape(cfg.n_kv_heads, cfg.head_dim)
    mean = mean_rotated(heads, rope, cfg.rope_style, cfg.max_context)
    return w.upload(mean.reshape(-1))
