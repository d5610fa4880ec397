"""ModernBERT: norms before each half, rope, gated MLPs; every third layer sees everything, the others a window."""

from dataclasses import replace

from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_LAYERS, ModelConfig
from tahr.models.config.rope import MOST_CONTEXT, RopeConfig
from tahr.models.decoder import Decoder, decoder_of
from tahr.models.encoders.layers import encoder
from tahr.models.encoders.reading import gguf_labels, hf_labels
from tahr.models.families import phi3
from tahr.models.family import Family, with_prefix
from tahr.models.files.gguf import local_layers
from tahr.models.files.hf import MOST_THETA, activation, hf_rope, with_windows
from tahr.models.parts.attention import Attention
from tahr.models.parts.mlp import GatedMLP
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.weights import Weights

PERIOD = 3


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    def layer(i: int, at: Weights) -> DecoderLayer:
        return DecoderLayer(
            attention=Attention(cfg, i, at.at("self_attn")),
            ffn=GatedMLP(cfg, at.at("mlp")),
            # The first layer reads what the norm of the embeddings gives.
            norms=(at.norm("input_layernorm") if i else None, at.norm("post_attention_layernorm")),
        )

    return decoder_of(cfg, w, layer)


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    period = f.count("global_attn_every_n_layers", MOST_LAYERS, default=PERIOD)
    window = each_side(f.count("local_attention", MOST_CONTEXT, default=128))
    cfg = with_windows(f, cfg, window, sliding=lambda i: i % period != 0)
    cfg = replace(encoder(cfg, hf_labels(f)), activation=activation(f, "hidden_activation"))
    return with_ropes(cfg, rope_hf(f, cfg, "full_attention"), rope_hf(f, cfg, "sliding_attention"))


def rope_hf(f: Fields, cfg: ModelConfig, kind: str) -> RopeConfig:
    if kind in f.part("rope_parameters").values:
        return hf_rope(f, cfg.head_dim, kind)
    name, default = ("global_rope_theta", 160000) if kind == "full_attention" else ("local_rope_theta", 10000)
    return RopeConfig(f.number(name, 1, MOST_THETA, default=default), cfg.head_dim)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    window = each_side(f.count("attention.sliding_window", MOST_CONTEXT, default=128))
    if isinstance(f.get("attention.sliding_window_pattern"), int | None):
        period = f.count("attention.sliding_window_pattern", MOST_LAYERS, default=PERIOD)
        local = [i % period != 0 for i in range(cfg.n_layers)]
    else:
        local = local_layers(f, cfg, PERIOD)
    kinds = tuple(
        replace(kind, window=window if is_local else 0) for kind, is_local in zip(cfg.kinds, local, strict=True)
    )
    base = f.number("rope.freq_base_swa", 1, MOST_THETA, default=10000)
    cfg = replace(encoder(cfg, gguf_labels(f)), kinds=kinds, activation="gelu")
    return with_ropes(cfg, cfg.kinds[0].rope, RopeConfig(base, cfg.head_dim))


def each_side(window: int) -> int:
    """Files count both sides of a token; we count one, with the token itself."""
    return window // 2 + 1


def with_ropes(cfg: ModelConfig, everywhere: RopeConfig, local: RopeConfig) -> ModelConfig:
    return replace(cfg, kinds=tuple(replace(kind, rope=local if kind.window else everywhere) for kind in cfg.kinds))


TOP_NAMES = {
    "layers": "model.layers",
    "embeddings.tok_embeddings": "model.embed_tokens",
    "embeddings.norm": "model.embed_norm",
    "final_norm": "model.norm",
}
MODERN_BERT = Family(
    "modernbert",
    build,
    refine_hf=refine_hf,
    refine_gguf=refine_gguf,
    hf_defaults={
        "vocab_size": 50368,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
    },
    hf_fields={"rms_norm_eps": "norm_eps"},
    gguf_names={"ffn_up": "mlp.gate_up_proj"},
    hf_names={
        **with_prefix("model.", TOP_NAMES),
        "attn.Wqkv": "self_attn.qkv_proj",
        "attn.Wo": "self_attn.o_proj",
        "attn_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "mlp.Wi": "mlp.gate_up_proj",
        "mlp.Wo": "mlp.down_proj",
        "head.dense": "classifier.dense",
        "head.norm": "classifier.norm",
        "classifier": "classifier.out",
    },
    arrange=phi3.arrange,
)
