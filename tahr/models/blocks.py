"""The parts decoders are made of. Each says which ops it takes; none knows where they run."""

from collections.abc import Mapping
from typing import Protocol

from tahr.backends.api import (
    Activation,
    AddedNorm,
    AttentionSpec,
    Backend,
    ExpertMLPs,
    HeadNorms,
    JoinedLinears,
    KVShape,
    KVStore,
    LayerMemory,
    LayerShape,
    Rope,
    Rotation,
    Routing,
    StepInputs,
    Tensor,
)
from tahr.models.config import ModelConfig
from tahr.models.rope import RopeConfig
from tahr.models.weights import Norm, Weights


class ForwardPass:
    """What every sublayer needs while one step is computed: the device, the step, the memory of layers, ropes."""

    def __init__(self, backend: Backend, step: StepInputs, kv: KVStore, ropes: Mapping[RopeConfig, Rope]):
        self.backend, self.step, self.kv = backend, step, kv
        self._ropes = ropes
        self._cos_sin: dict[RopeConfig, Tensor] = {}

    def cos_sin(self, rope: RopeConfig) -> Tensor:
        """The cosines and sines of every token, computed once for all layers that share a rope."""
        if rope not in self._cos_sin:
            self._cos_sin[rope] = self.backend.cos_sin(self.step, self._ropes[rope])
        return self._cos_sin[rope]

    def memory(self, layer: int) -> LayerMemory:
        """What a layer remembers."""
        return LayerMemory(self.step, self.kv, layer)


class ResidualStream:
    """The residual stream. What a sublayer adds is added only when the next norm reads it, so both are one op."""

    def __init__(self, backend: Backend, rows: Tensor, scale: float):
        self.backend = backend
        self.rows = rows
        self.scale = scale
        self.pending: Tensor | None = None

    def normed(self, norm: Norm) -> Tensor:
        """The normed rows, everything added so far included."""
        if self.pending is None:
            return self.backend.rms_norm(self.rows, norm.gain, norm.eps)
        self.rows, normed = self.backend.add_rms_norm(self.rows, self.pending, norm.gain, norm.eps, self.scale)
        self.pending = None
        return normed

    def take_pending(self, norm: Norm) -> AddedNorm:
        """What the next norm reads, for an op that also returns the new rows of the stream."""
        assert self.pending is not None
        pending, self.pending = self.pending, None
        return AddedNorm(self.rows, pending, norm.gain, norm.eps, self.scale)

    def add(self, delta: Tensor) -> None:
        """Add `delta` before the next norm."""
        assert self.pending is None
        self.pending = delta

    def gather_rows(self, step: StepInputs) -> None:
        """Go on with the rows whose logits are wanted."""
        self.rows = self.backend.gather_rows(self.rows, step)
        self.pending = self.backend.gather_rows(self.pending, step) if self.pending else None


class NormedInput:
    """The residual stream as a sublayer reads it, once: through a norm, in one op with the product that follows."""

    def __init__(self, stream: ResidualStream, norm: Norm):
        self._stream, self._norm = stream, norm

    def rows(self) -> Tensor:
        """The normed rows themselves."""
        return self._stream.normed(self._norm)

    def linears(self, joined: JoinedLinears) -> list[Tensor]:
        """Several linears of the normed rows."""
        stream = self._stream
        if stream.pending is None:
            return stream.backend.linears(self.rows(), joined)
        stream.rows, results = stream.backend.norm_linears(stream.take_pending(self._norm), joined)
        return results

    def gated(self, gate_up: JoinedLinears, act: Activation) -> Tensor:
        """act(gate) * up of the normed rows."""
        stream = self._stream
        if stream.pending is None:
            return stream.backend.gated(self.rows(), gate_up, act)
        stream.rows, result = stream.backend.norm_gated(stream.take_pending(self._norm), gate_up, act)
        return result


class Sublayer(Protocol):
    """One half of a decoder layer: the normed stream in, what to add to it out."""

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor: ...


class Mixer(Sublayer, Protocol):
    """The half in which tokens read each other, through what the layer remembers of their sequence."""

    @property
    def memory(self) -> LayerShape:
        """What it remembers."""


class Attention:
    """Causal attention over the sequence's pages, with rope, grouped heads and, in some families, head norms."""

    def __init__(self, cfg: ModelConfig, layer: int, w: Weights, qk_norm: bool = False):
        kind, q_width, kv_width = cfg.kinds[layer], cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim
        self.layer = layer
        self.rope, self.style = kind.rope, cfg.rope_style
        self.memory = KVShape(cfg.n_kv_heads, cfg.head_dim)
        self.spec = AttentionSpec(cfg.attn_scale, kind.window, cfg.attn_softcap)
        w.backend.check_attention(self.spec, self.memory, cfg.n_heads)
        self.qkv = w.joined({"q_proj": q_width, "k_proj": kv_width, "v_proj": kv_width}, cfg.width, cfg.qkv_bias)
        self.out = w.linear("o_proj", cfg.width, q_width, cfg.out_bias)
        self.norms = head_norms(cfg, w) if qk_norm else None

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        b, memory = run.backend, run.memory(self.layer)
        qkv = x.linears(self.qkv)
        q = b.rope_and_cache(qkv, Rotation(run.cos_sin(self.rope), self.style, self.norms), memory)
        del qkv  # its memory is free for what follows
        return b.linear(b.attention(q, self.spec, memory), self.out)


def head_norms(cfg: ModelConfig, w: Weights) -> HeadNorms:
    query, key = w.norm("q_norm", cfg.head_dim), w.norm("k_norm", cfg.head_dim)
    return HeadNorms(query.gain, key.gain, cfg.norm_eps)


class GatedMLP:
    """down(act(gate(x)) * up(x))."""

    def __init__(self, cfg: ModelConfig, w: Weights):
        self.act = cfg.activation
        self.gate_up = w.joined({"gate_proj": cfg.ffn_width, "up_proj": cfg.ffn_width}, cfg.width, cfg.mlp_bias)
        self.down = w.linear("down_proj", cfg.width, cfg.ffn_width, cfg.mlp_bias)

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        return run.backend.linear(x.gated(self.gate_up, self.act), self.down)


class Experts:
    """A gated MLP per expert; a router sends each token to a few of them."""

    def __init__(self, cfg: ModelConfig, w: Weights):
        assert cfg.moe is not None
        moe, experts = cfg.moe, w.at("experts")
        self.router = w.linear("gate", moe.n_experts, cfg.width)
        self.mlps = ExpertMLPs(
            gate=experts.stack("gate_proj", moe.n_experts, moe.ffn_width, cfg.width),
            up=experts.stack("up_proj", moe.n_experts, moe.ffn_width, cfg.width),
            down=experts.stack("down_proj", moe.n_experts, cfg.width, moe.ffn_width),
            routing=Routing(moe.n_active, moe.renormalise),
            act=cfg.activation,
        )

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        rows = x.rows()
        return run.backend.experts(rows, run.backend.linear(rows, self.router), self.mlps)


class DecoderLayer:
    """Mix tokens, then transform each: a norm before either half and, in some families, one after."""

    def __init__(self, mix: Mixer, ffn: Sublayer, norms: tuple[Norm, Norm], after: tuple[Norm, Norm] | None = None):
        self.memory = mix.memory
        self.halves: tuple[Sublayer, Sublayer] = mix, ffn
        self.norms = norms
        self.after = after

    def mix(self, run: ForwardPass, stream: ResidualStream) -> None:
        """Let tokens read each other."""
        self._half(0, run, stream)

    def transform(self, run: ForwardPass, stream: ResidualStream) -> None:
        """Work on each token alone."""
        self._half(1, run, stream)

    def _half(self, i: int, run: ForwardPass, stream: ResidualStream) -> None:
        delta = self.halves[i](run, NormedInput(stream, self.norms[i]))
        if self.after:
            delta = run.backend.rms_norm(delta, self.after[i].gain, self.after[i].eps)
        stream.add(delta)
