"""The parts decoders are made of. Each says which ops it takes; none knows where they run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tahr.backends.api import Backend, HeadNorms, KVStore, Routing, StepInputs, Tensor
from tahr.models.config import ModelConfig
from tahr.models.rope import RopeConfig
from tahr.models.weights import Norm, Weights


@dataclass(frozen=True, slots=True)
class Pass:
    """What every block of one forward pass needs: the device, the step, the KV store, the angles of each rope."""

    backend: Backend
    step: StepInputs
    kv: KVStore
    angles: Mapping[RopeConfig, Tensor]


class Block(Protocol):
    """One half of a layer: rows in, what to add to the residual stream out."""

    def __call__(self, run: Pass, x: Tensor) -> Tensor: ...


class Stream:
    """The residual stream. What a block leaves is added only when the next norm reads it, so both are one op."""

    def __init__(self, backend: Backend, rows: Tensor, scale: float):
        self.backend = backend
        self.rows = rows
        self.scale = scale
        self.pending: Tensor | None = None

    def read(self, norm: Norm) -> Tensor:
        """The normed rows, everything left so far included."""
        if self.pending is None:
            return self.backend.rms_norm(self.rows, norm.gain, norm.eps)
        self.rows, normed = self.backend.add_rms_norm(self.rows, self.pending, norm.gain, norm.eps, self.scale)
        self.pending = None
        return normed

    def leave(self, delta: Tensor) -> None:
        """Add `delta` before the next read."""
        assert self.pending is None
        self.pending = delta

    def keep(self, step: StepInputs) -> None:
        """Go on with the rows whose logits are wanted."""
        self.rows = self.backend.gather_rows(self.rows, step)
        self.pending = self.backend.gather_rows(self.pending, step) if self.pending else None


class Attention:
    """Causal attention over the sequence's pages, with rope, grouped heads and, in some families, head norms."""

    def __init__(self, cfg: ModelConfig, layer: int, w: Weights, qk_norm: bool = False):
        self.layer = layer
        self.kind = cfg.kinds[layer]
        self.style = cfg.rope_style
        self.scale = cfg.attn_scale
        self.softcap = cfg.attn_softcap
        q_width, kv_width = cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim
        widths = {"q_proj": q_width, "k_proj": kv_width, "v_proj": kv_width}
        self.qkv = [w.matrix(f"{name}.weight", width, cfg.width) for name, width in widths.items()]
        self.qkv_biases = [w.vector(f"{name}.bias", width) if cfg.qkv_bias else None for name, width in widths.items()]
        self.out = w.matrix("o_proj.weight", cfg.width, q_width)
        self.out_bias = w.vector("o_proj.bias", cfg.width) if cfg.out_bias else None
        self.norms = head_norms(cfg, w) if qk_norm else None

    def __call__(self, run: Pass, x: Tensor) -> Tensor:
        b, step, kv = run.backend, run.step, run.kv
        q, k, v = b.linears(x, self.qkv, self.qkv_biases)
        q = b.rope_and_cache(q, k, v, run.angles[self.kind.rope], self.style, step, kv, self.layer, self.norms)
        mixed = b.attention(q, step, kv, self.layer, self.scale, self.kind.window, self.softcap)
        return b.linear(mixed, self.out, self.out_bias)


def head_norms(cfg: ModelConfig, w: Weights) -> HeadNorms:
    query, key = w.norm("q_norm", cfg.head_dim), w.norm("k_norm", cfg.head_dim)
    return HeadNorms(query.gain, key.gain, cfg.norm_eps)


class GatedMLP:
    """down(act(gate(x)) * up(x))."""

    def __init__(self, cfg: ModelConfig, w: Weights):
        self.act = cfg.activation
        self.gate = w.matrix("gate_proj.weight", cfg.ffn_width, cfg.width)
        self.up = w.matrix("up_proj.weight", cfg.ffn_width, cfg.width)
        self.down = w.matrix("down_proj.weight", cfg.width, cfg.ffn_width)
        halves = ("gate_proj.bias", "up_proj.bias")
        self.biases = [w.vector(name, cfg.ffn_width) for name in halves] if cfg.mlp_bias else None
        self.down_bias = w.vector("down_proj.bias", cfg.width) if cfg.mlp_bias else None

    def __call__(self, run: Pass, x: Tensor) -> Tensor:
        return run.backend.linear(self.inner(run.backend, x), self.down, self.down_bias)

    def inner(self, b: Backend, x: Tensor) -> Tensor:
        if self.biases is None:
            return b.gated(x, self.gate, self.up, self.act)
        gate, up = b.linears(x, [self.gate, self.up], self.biases)
        return b.activate(gate, up, self.act)


class Experts:
    """A gated MLP per expert; a router sends each token to a few of them."""

    def __init__(self, cfg: ModelConfig, w: Weights):
        assert cfg.moe is not None
        moe, experts = cfg.moe, w.at("experts")
        self.act = cfg.activation
        self.routing = Routing(moe.n_active, moe.renormalise)
        self.router = w.matrix("gate.weight", moe.n_experts, cfg.width)
        self.gate = experts.stack("gate_proj.weight", moe.n_experts, moe.ffn_width, cfg.width)
        self.up = experts.stack("up_proj.weight", moe.n_experts, moe.ffn_width, cfg.width)
        self.down = experts.stack("down_proj.weight", moe.n_experts, cfg.width, moe.ffn_width)

    def __call__(self, run: Pass, x: Tensor) -> Tensor:
        scores = run.backend.linear(x, self.router)
        return run.backend.experts(x, scores, self.gate, self.up, self.down, self.routing, self.act)


class Layer:
    """Mix tokens, then transform each: a norm before either half and, in some families, one after."""

    def __init__(self, mix: Block, ffn: Block, norms: tuple[Norm, Norm], after: tuple[Norm, Norm] | None = None):
        self.blocks = mix, ffn
        self.norms = norms
        self.after = after

    def mix(self, run: Pass, stream: Stream) -> None:
        """Let tokens read each other."""
        self.half(0, run, stream)

    def transform(self, run: Pass, stream: Stream) -> None:
        """Work on each token alone."""
        self.half(1, run, stream)

    def half(self, i: int, run: Pass, stream: Stream) -> None:
        delta = self.blocks[i](run, stream.read(self.norms[i]))
        if self.after:
            delta = run.backend.rms_norm(delta, self.after[i].gain, self.after[i].eps)
        stream.leave(delta)
