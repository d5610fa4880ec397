"""Gemma 4: Gemma 3 with wider heads in global layers, values that are normed too, a factor on the output of each
layer. The E sizes give every layer an embedding of its own, and their last layers read the keys of earlier ones."""

from dataclasses import replace

import numpy as np

from tahr.backends.api import AttentionSpec, HeadNorms, KVShape, Rotation, Rows, Tensor
from tahr.config import SamplingParams
from tahr.errors import CorruptFile, UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import LayerKind, ModelConfig
from tahr.models.config.rope import MOST_CONTEXT, RopeConfig
from tahr.models.decoder import Decoder
from tahr.models.families import gemma3, gemma4_experts
from tahr.models.families.gemma4_experts import DenseAndExperts
from tahr.models.family import Family
from tahr.models.files.gguf import gguf_experts, with_local_layers
from tahr.models.files.hf import MOST_THETA, activation, hf_experts, hf_rope, with_windows
from tahr.models.parts.blocks import DecoderLayer, GatedMLP
from tahr.models.parts.stages import kv_source
from tahr.models.parts.stream import ForwardPass, NormedInput, ResidualStream
from tahr.models.parts.weights import Weights

PERIOD = 6


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
            mix=Gemma4Attention(cfg, i, at.at("self_attn")),
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

    def transform(self, run: ForwardPass, stream: ResidualStream) -> None:
        super().transform(run, stream)
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


class Gemma4Decoder(Decoder):
    """A decoder that looks every token up a second time, for all layers at once."""

    def __init__(self, cfg: ModelConfig, w: Weights):
        super().__init__(cfg, w, [Gemma4Layer(cfg, i, w.at(f"model.layers.{i}")) for i in range(cfg.n_layers)])
        n = cfg.n_layers * cfg.per_layer_width
        if n:
            self.second_table = w.matrix("model.embed_tokens_per_layer.weight", cfg.n_vocab, n)
            self.projection = w.linear("model.per_layer_model_projection", n, cfg.width)
            self.projection_norm = w.norm("model.per_layer_projection_norm", cfg.per_layer_width)

    def prepare(self, run: ForwardPass, embedded: Tensor) -> None:
        cfg = self.config
        b = run.backend
        if cfg.per_layer_width:
            projected = b.scale(b.linear(embedded, self.projection), cfg.width**-0.5)
            normed = b.head_norm(projected, self.projection_norm.gain, cfg.norm_eps)
            looked_up = b.embed(self.second_table, run.step, cfg.per_layer_width**0.5)
            run.per_layer = b.scale(b.add(normed, looked_up), 2**-0.5)


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    if f.get("use_bidirectional_attention") == "all":
        raise UnsupportedModel("This Gemma reads texts in both directions; Tahr does not run such models yet.")
    wide, n_kv = global_heads(f, cfg)
    cfg = with_windows(f, cfg, f.count("sliding_window", MOST_CONTEXT), sliding=lambda i: (i + 1) % PERIOD != 0)
    local = hf_rope(f, cfg.head_dim, "sliding_attention")
    n_shared = shared_layers(f, "num_kv_shared_layers", cfg)
    cfg = replace(cfg, activation=activation(f, "hidden_activation"), n_kv_shared=n_shared)
    factor = 2 if f.flag("use_double_wide_mlp") else 1
    widths = [cfg.ffn_width * (factor if i >= cfg.n_layers - n_shared else 1) for i in range(cfg.n_layers)]
    heads = {True: (local, cfg.head_dim, cfg.n_kv_heads), False: (hf_rope(f, wide, "full_attention"), wide, n_kv)}
    kinds = [kind_of(k, cfg, width, heads[bool(k.window)]) for k, width in zip(cfg.kinds, widths, strict=True)]
    own = f.count("hidden_size_per_layer_input", limits.MOST_WIDTH, default=0, least=0)
    if f.flag("enable_moe_block"):
        cfg = replace(cfg, moe=hf_experts(f, "num_experts", "moe_intermediate_size"))
    return shaped(f, cfg, kinds, max(wide, cfg.head_dim), own, "final_logit_softcapping")


def global_heads(f: Fields, cfg: ModelConfig) -> tuple[int, int]:
    """The width and the number of key heads of global layers."""
    told = [part for part in f.part("per_layer_config").values.values() if isinstance(part, dict)]
    part = Fields(told[0] if told else {}, f"{f.where}, per_layer_config")
    wide = part.count("head_dim", limits.MOST_HEAD_DIM, f.count("global_head_dim", limits.MOST_HEAD_DIM, default=512))
    n_kv = f.count("num_global_key_value_heads", cfg.n_heads, default=cfg.n_kv_heads)
    n_kv = n_kv if f.flag("attention_k_eq_v") else cfg.n_kv_heads
    return wide, part.count("num_key_value_heads", cfg.n_heads, default=n_kv)


def shared_layers(f: Fields, name: str, cfg: ModelConfig) -> int:
    return f.count(name, cfg.n_layers - 1, default=0, least=0)


def kind_of(kind: LayerKind, cfg: ModelConfig, ffn_width: int, heads: tuple[RopeConfig, int, int]) -> LayerKind:
    rope, head_dim, n_kv_heads = heads
    if cfg.n_heads % n_kv_heads:
        raise CorruptFile(
            f"{cfg.n_heads} query heads cannot share {n_kv_heads} key heads evenly; fetch the model again."
        )
    return replace(kind, rope=rope, head_dim=head_dim, n_kv_heads=n_kv_heads, ffn_width=ffn_width)


def shaped(f: Fields, cfg: ModelConfig, kinds: list[LayerKind], head_dim: int, own: int, cap: str) -> ModelConfig:
    """Fill in the facts that both kinds of file leave out."""
    n_own = cfg.n_layers - cfg.n_kv_shared
    if {bool(kind.window) for kind in kinds[n_own:]} - {bool(kind.window) for kind in kinds[:n_own]}:
        raise CorruptFile("Layers of the model share keys that no layer has; fetch the model again.")
    softcap = f.number(cap, -1, limits.MOST_MULTIPLIER, default=0)
    cfg = replace(cfg, head_dim=head_dim, kinds=tuple(kinds), per_layer_width=own, logit_softcap=softcap)
    return replace(cfg, attn_scale=1.0, embed_scale=cfg.width**0.5)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    cfg = replace(with_local_layers(f, cfg, PERIOD), activation="gelu_tanh")
    cfg = replace(cfg, n_kv_shared=shared_layers(f, "attention.shared_kv_layers", cfg))
    narrow = f.count("attention.key_length_swa", limits.MOST_HEAD_DIM, default=cfg.head_dim)
    n_dims = f.count("rope.dimension_count_swa", narrow, default=narrow)
    local = RopeConfig(f.number("rope.freq_base_swa", 1, MOST_THETA, default=10000), n_dims)
    n_kv = per_layer(f, "attention.head_count_kv", cfg, cfg.n_kv_heads, cfg.n_heads)
    widths = per_layer(f, "feed_forward_length", cfg, cfg.ffn_width, limits.MOST_FFN)
    kinds = [
        kind_of(k, cfg, width, (local, narrow, n) if k.window else (k.rope, cfg.head_dim, n))
        for k, n, width in zip(cfg.kinds, n_kv, widths, strict=True)
    ]
    own = f.count("embedding_length_per_layer_input", limits.MOST_WIDTH, default=0, least=0)
    if f.count("expert_count", limits.MOST_EXPERTS, default=0, least=0):
        cfg = replace(cfg, moe=gguf_experts(f))
    return shaped(f, cfg, kinds, max(narrow, cfg.head_dim), own, "final_logit_softcapping")


def per_layer(f: Fields, name: str, cfg: ModelConfig, default: int, most: int) -> list[int]:
    """A number of every layer: a list in some files."""
    if isinstance(f.get(name), int | None):
        return [default] * cfg.n_layers
    found = f.items(name, cfg.n_layers)
    if not all(isinstance(n, int | np.integer) and 0 < n <= most for n in found):
        raise f.wrong(name, f"a list of whole numbers from 1 to {most}")
    return [int(n) for n in found]


GEMMA4 = Family(
    "gemma4",
    Gemma4Decoder,
    SamplingParams(temperature=1.0, top_k=64, top_p=0.95),
    refine_hf,
    refine_gguf,
    hf_defaults={
        "vocab_size": 262144,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "sliding_window": 512,
        "tie_word_embeddings": True,
    },
    gguf_names={
        **gemma3.GGUF_NAMES,
        **gemma4_experts.GGUF_NAMES,
        "layer_output_scale": "layer_scalar",
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
    },
    hf_names={"layer_scalar": "layer_scalar.weight", **gemma4_experts.HF_NAMES},
    hf_fields={"num_experts_per_tok": "top_k_experts"},
    arrange=gemma4_experts.arrange,
    per_layer=("attention.head_count_kv", "feed_forward_length"),
)
