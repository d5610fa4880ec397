"""The parts decoders are made of. Each says which ops it takes; none knows where they run."""

from typing import Literal, Protocol

from tahr.backends.api import (
    AttentionSpec,
    Backend,
    ExpertMLPs,
    HeadNorms,
    KVShape,
    LayerShape,
    Rotation,
    Routing,
    Tensor,
    Vector,
)
from tahr.models.config.record import ModelConfig, MoeConfig
from tahr.models.config.rope import RopeConfig, mean_rotated
from tahr.models.parts.stream import ForwardPass, NormedInput, ResidualStream
from tahr.models.parts.weights import Norm, Weights

# Norms of queries and keys: none, of each head, of each head without a gain, of all heads together.
QkNorm = Literal["", "heads", "units", "rows"]


class Sublayer(Protocol):
    """One half of a decoder layer: the normed stream in, what to add to it out."""

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor: ...


class Mixer(Sublayer, Protocol):
    """The half in which tokens read each other, through what the layer remembers of their sequence."""

    @property
    def memory(self) -> LayerShape:
        """The layer's memory."""


class Attention:
    """Attention over the sequence's pages, with grouped heads, rope and, in some families, norms of queries and keys,
    sinks, or slopes in place of rope. It is causal, but for encoders."""

    def __init__(self, cfg: ModelConfig, layer: int, w: Weights, qk_norm: QkNorm = "", sinks: bool = False):
        kind = cfg.kinds[layer]
        q_width = cfg.n_heads * cfg.head_dim
        kv_width = cfg.n_kv_heads * cfg.head_dim
        self.layer = layer
        self.rope = kind.rope
        self.style = cfg.rope_style
        self.memory = KVShape(cfg.n_kv_heads, cfg.head_dim)
        self.spec = AttentionSpec(
            cfg.attn_scale,
            kind.window,
            cfg.attn_softcap,
            not cfg.bidirectional,
            sinks=w.vector("sinks.weight", cfg.n_heads) if sinks else None,
            slopes=w.constants(alibi_slopes(cfg)) if cfg.alibi else None,
            chunked=kind.chunked,
        )
        w.backend.check_attention(self.spec, self.memory, cfg.n_heads)
        heights = {"q_proj": q_width, "k_proj": kv_width, "v_proj": kv_width}
        self.gated = w.has("g_proj.weight")
        self.qkv = w.joined(heights | ({"g_proj": q_width} if self.gated else {}), cfg.width, cfg.qkv_bias)
        self.out = w.linear("o_proj", cfg.width, q_width, cfg.out_bias)
        self.sub_norm = w.norm("attn_sub_norm", q_width) if w.has("attn_sub_norm.weight") else None
        self.norms = head_norms(cfg, w, qk_norm == "heads") if qk_norm in ("heads", "units") else None
        self.row_norms = (w.norm("q_norm", q_width), w.norm("k_norm", kv_width)) if qk_norm == "rows" else None
        self.clip = cfg.qkv_clip
        self.attn_scaling = cfg.attn_scaling if kind.attn_scaled else None
        self.key_mean = key_mean(cfg, kind.rope, w) if self.ignores_constants(cfg, qk_norm) else None

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        b = run.backend
        qkv = self.prepared(run, x.linears(self.qkv))
        gate = qkv.pop() if self.gated else None
        mixed = self.attended(run, qkv)
        mixed = self.sub_norm.apply(b, mixed) if self.sub_norm else mixed
        return b.linear(b.activate(gate, mixed, "sigmoid") if gate else mixed, self.out)

    def attended(self, run: ForwardPass, qkv: list[Tensor]) -> Tensor:
        """Rope, cache write and attention; `qkv` is empty afterwards."""
        b = run.backend
        memory = run.memory(self.layer)
        rotation = Rotation(run.cos_sin(self.rope), self.style, self.norms, self.key_mean)
        if self.attn_scaling is None:
            return b.rope_attention(qkv, rotation, self.spec, memory)
        q = b.rope_and_cache(qkv, rotation, memory)
        qkv.clear()
        return b.attention(b.scale_queries(q, self.attn_scaling, run.step), self.spec, memory)

    def ignores_constants(self, cfg: ModelConfig, qk_norm: QkNorm) -> bool:
        """Whether keys have a bias that only adds a constant to all scores of a query."""
        return cfg.qkv_bias and not qk_norm and not self.spec.softcap and self.spec.sinks is None

    def prepared(self, run: ForwardPass, qkv: list[Tensor]) -> list[Tensor]:
        """Hook for families that change queries, keys and values before rope."""
        if self.clip:
            qkv = [run.backend.clip(x, self.clip) for x in qkv]
        if self.row_norms:
            qkv[:2] = [norm.apply(run.backend, x) for norm, x in zip(self.row_norms, qkv[:2], strict=True)]
        return qkv


def head_norms(cfg: ModelConfig, w: Weights, has_gains: bool) -> HeadNorms:
    if not has_gains:
        ones = w.constants([1.0] * cfg.head_dim)
        return HeadNorms(ones, ones, cfg.norm_eps)
    query = w.norm("q_norm", cfg.head_dim)
    key = w.norm("k_norm", cfg.head_dim)
    return HeadNorms(query.gain, key.gain, cfg.norm_eps)


def alibi_slopes(cfg: ModelConfig) -> list[float]:
    """2^(-alibi / n), 2^(-2 * alibi / n), ... for n heads. Where n is no power of two, the slopes of the next one, of
    which every other come last."""
    n = 1 << (cfg.n_heads - 1).bit_length()
    slopes = [2 ** (-cfg.alibi * (i + 1) / n) for i in range(n)]
    return slopes if n == cfg.n_heads else (slopes[1::2] + slopes[::2])[: cfg.n_heads]


def key_mean(cfg: ModelConfig, rope: RopeConfig, w: Weights) -> Vector:
    """The part of keys that biases make equal for all tokens: often far more than the rest, see `Rotation`."""
    bias = w.find("k_proj.bias", (cfg.n_kv_heads * cfg.head_dim,)).dense().reshape(cfg.n_kv_heads, cfg.head_dim)
    return w.upload(mean_rotated(bias, rope, cfg.rope_style, cfg.max_context).reshape(-1))


class GatedMLP:
    """down(act(gate(x)) * up(x)), in some families with a norm before down."""

    def __init__(self, cfg: ModelConfig, w: Weights, ffn_width: int | None = None):
        n = ffn_width or cfg.ffn_width
        self.act = cfg.activation
        self.gate_up = w.joined({"gate_proj": n, "up_proj": n}, cfg.width, cfg.mlp_bias)
        self.down = w.linear("down_proj", cfg.width, n, cfg.mlp_bias)
        self.sub_norm = w.norm("ffn_sub_norm", n) if w.has("ffn_sub_norm.weight") else None

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        return self.downward(run.backend, x.gated(self.gate_up, self.act))

    def of_rows(self, b: Backend, rows: Tensor) -> Tensor:
        """Compute from rows that another sublayer reads too."""
        return self.downward(b, b.gated(rows, self.gate_up, self.act))

    def downward(self, b: Backend, inner: Tensor) -> Tensor:
        return b.linear(self.sub_norm.apply(b, inner) if self.sub_norm else inner, self.down)


class PlainMLP:
    """down(act(up(x)))."""

    def __init__(self, cfg: ModelConfig, w: Weights):
        self.act = cfg.activation
        self.up = w.joined({"up_proj": cfg.ffn_width}, cfg.width, cfg.mlp_bias)
        self.down = w.linear("down_proj", cfg.width, cfg.ffn_width, cfg.mlp_bias)

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        (up,) = x.linears(self.up)
        return run.backend.linear(run.backend.activate(up, None, self.act), self.down)


class Experts:
    """A gated MLP per expert; a router sends each token to a few of them, and all to the shared one if there is one."""

    def __init__(self, cfg: ModelConfig, w: Weights):
        assert cfg.moe is not None
        moe = cfg.moe
        experts = w.at("experts")
        self.router = w.linear("gate", moe.n_experts, cfg.width, moe.biased)
        self.mlps = ExpertMLPs(
            gate=experts.stack("gate_proj", moe.n_experts, moe.ffn_width, cfg.width, moe.biased),
            up=experts.stack("up_proj", moe.n_experts, moe.ffn_width, cfg.width, moe.biased),
            down=experts.stack("down_proj", moe.n_experts, cfg.width, moe.ffn_width, moe.biased),
            routing=routing(moe, w),
            act=cfg.activation,
        )
        self.shared_gate = w.linear("shared_expert_gate", 1, cfg.width) if moe.shared_gate else None
        self.shared = GatedMLP(cfg, w.at("shared_experts"), moe.shared_width) if moe.shared_width else None

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        b = run.backend
        rows = x.rows()
        mixed = b.experts(rows, b.linear(rows, self.router), self.mlps)
        if self.shared is None:
            return mixed
        shared = self.shared.of_rows(b, rows)
        return b.add(mixed, b.gate_rows(shared, b.linear(rows, self.shared_gate)) if self.shared_gate else shared)


def routing(moe: MoeConfig, w: Weights) -> Routing:
    bias = w.vector("gate.e_score_correction.bias", moe.n_experts) if moe.choice_bias else None
    return Routing(
        moe.n_active,
        moe.renormalise,
        moe.sigmoid,
        bias,
        moe.n_groups,
        moe.n_best_groups,
        moe.group_top,
        scale=moe.scale,
        scales_input=moe.scales_input,
        jitter=moe.jitter,
    )


class DecoderLayer:
    """Mix tokens, then transform each: a norm before either half, after it, or both. A parallel layer's halves read the
    same rows, and what they give is added to them at once."""

    def __init__(
        self,
        mix: Mixer,
        ffn: Sublayer,
        norms: tuple[Norm | None, Norm | None] = (None, None),
        after: tuple[Norm, Norm] | None = None,
        parallel: bool = False,
    ):
        self.memory = mix.memory
        self.halves: tuple[Sublayer, Sublayer] = mix, ffn
        self.norms = norms
        self.after = after
        self.parallel = parallel

    def mix(self, run: ForwardPass, stream: ResidualStream) -> None:
        """Let tokens read each other."""
        stream.add(self._half(0, run, stream))

    def transform(self, run: ForwardPass, stream: ResidualStream) -> None:
        """Work on each token alone."""
        stream.add(self._half(1, run, stream.without_pending() if self.parallel else stream))

    def _half(self, i: int, run: ForwardPass, stream: ResidualStream) -> Tensor:
        delta = self.halves[i](run, NormedInput(stream, self.norms[i]))
        return self.after[i].apply(run.backend, delta) if self.after else delta
