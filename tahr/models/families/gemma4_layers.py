"""Layers of Gemma 4: attention with normed values, and embeddings of a layer's own."""

from tahr.backends.api import AttentionSpec, HeadNorms, KVShape, Rotation, Rows, Tensor
from tahr.models.config.record import ModelConfig
from tahr.models.families.gemma4_experts import DenseAndExperts
from tahr.models.parts.mlp import GatedMLP
from tahr.models.parts.stages import kv_source
from tahr.models.parts.stream import ForwardPass, NormedInput, ResidualStream
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.weights import Weights


class Gemma4Attention:
    """Attention whose values are normed like its keys; the keys may be those of the layer `source`."""

    def __init__(self, cfg: ModelConfig, layer: int, w: Weights):
        kind = cfg.kinds[layer]
        b = w.backend
        q_width = cfg.n_heads * kind.head_dim
        kv_width = kind.n_kv_heads * kind.head_dim
        self.source = kv_source(cfg, layer)
        self.rope = kind.rope
        self.eps = cfg.norm_eps
        self.memory = KVShape(kind.n_kv_heads, kind.head_dim)
        self.spec = AttentionSpec(cfg.attn_scale, kind.window)
        b.check_attention(self.spec, self.memory, cfg.n_heads)
        heights = {"q_proj": q_width}
        if self.source == layer:
            heights |= {name: kv_width for name in ("k_proj", "v_proj") if w.has(f"{name}.weight")}
        self.qkv = w.joined(heights, cfg.width)
        self.out = w.linear("o_proj", cfg.width, q_width)
        query = w.norm("q_norm", kind.head_dim)
        key = w.norm("k_norm", kind.head_dim) if self.source == layer else query
        self.norms = HeadNorms(query.gain, key.gain, cfg.norm_eps)
        self.ones = w.constants([1.0] * kind.head_dim)

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        b = run.backend
        memory = run.memory(self.source)
        q, *kv = x.linears(self.qkv)
        if kv:
            kv = [kv[0], b.head_norm(kv[-1], self.ones, self.eps)]  # keys serve as values where a layer has none
        q = b.rope_and_cache([q, *kv], Rotation(run.cos_sin(self.rope), "halves", self.norms), memory)
        return b.linear(b.attention(q, self.spec, memory), self.out)


class Gemma4Layer(DecoderLayer):
    """A layer of Gemma 3, then what its own embedding of the token adds, then a factor."""

    def __init__(self, cfg: ModelConfig, i: int, at: Weights):
        width = cfg.kinds[i].ffn_width
        super().__init__(
            attention=Gemma4Attention(cfg, i, at.at("self_attn")),
            ffn=DenseAndExperts(cfg, at, width) if cfg.moe else GatedMLP(cfg, at.at("mlp"), width),
            norms=at.pick("input_layernorm", "pre_feedforward_layernorm"),
            after=at.pick("post_attention_layernorm", "post_feedforward_layernorm"),
        )
        self.begin = i * cfg.per_layer_width
        self.width = cfg.per_layer_width
        self.act = cfg.activation
        self.scalar = float(at.find("layer_scalar.weight", (1,)).dense()[0]) if at.has("layer_scalar.weight") else 1.0
        if self.width:
            self.gate = at.linear("per_layer_input_gate", self.width, cfg.width)
            self.projection = at.linear("per_layer_projection", cfg.width, self.width)
            self.norm = at.norm("post_per_layer_input_norm")

    def mlp(self, run: ForwardPass, stream: ResidualStream) -> None:
        super().mlp(run, stream)
        if self.width:
            self.add_own_embedding(run, stream)
        if self.scalar != 1:
            stream.rows = run.backend.scale(stream.normed(None), self.scalar)

    def add_own_embedding(self, run: ForwardPass, stream: ResidualStream) -> None:
        b = run.backend
        rows = stream.normed(None)
        assert run.per_layer is not None
        own = b.columns(run.per_layer, self.begin, self.width)
        if rows.rows is Rows.LOGITS and own.rows is not Rows.LOGITS:
            own = b.gather_rows(own, run.step)
        gated = b.activate(b.linear(rows, self.gate), own, self.act)
        stream.add(self.norm.apply(b, b.linear(gated, self.projection)))
