"""Gemma 3 text: norms before and after each half, head norms, a GELU gate, and five windowed layers to a global one."""

from dataclasses import replace

from tahr.config import SamplingParams
from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_LAYERS, MOST_MULTIPLIER, ModelConfig
from tahr.models.config.rope import MOST_CONTEXT, RopeConfig
from tahr.models.decoder import Decoder, decoder_of
from tahr.models.family import Family
from tahr.models.files.gguf import with_local_layers
from tahr.models.files.hf import MOST_THETA, activation, hf_rope, with_windows
from tahr.models.parts.attention import Attention, QkNorm
from tahr.models.parts.mlp import GatedMLP
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.weights import Weights

PATTERN = 6  # every sixth layer sees everything
N_LAYERS_27B = 62


def build(cfg: ModelConfig, w: Weights, qk_norm: QkNorm = "heads") -> Decoder:
    def layer(i: int, at: Weights) -> DecoderLayer:
        return DecoderLayer(
            attention=Attention(cfg, i, at.at("self_attn"), qk_norm),
            ffn=GatedMLP(cfg, at.at("mlp")),
            norms=at.pick("input_layernorm", "pre_feedforward_layernorm"),
            after=at.pick("post_attention_layernorm", "post_feedforward_layernorm"),
        )

    return decoder_of(cfg, w, layer)


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    window = f.count("sliding_window", MOST_CONTEXT)
    pattern = f.count("sliding_window_pattern", MOST_LAYERS, default=PATTERN)
    cfg = with_windows(f, cfg, window, sliding=lambda i: (i + 1) % pattern != 0)
    cfg = replace(
        cfg,
        activation=activation(f, "hidden_activation"),
        norm_offset=1.0,  # the file holds gains minus one
        attn_scale=f.number("query_pre_attn_scalar", 0, MOST_MULTIPLIER) ** -0.5,
        attn_softcap=f.number("attn_logit_softcapping", -1, MOST_MULTIPLIER, default=0),
    )
    cfg = shaped(cfg, local_rope_hf(f, cfg), f.number("final_logit_softcapping", -1, MOST_MULTIPLIER, default=0))
    return both_ways(cfg) if f.flag("use_bidirectional_attention") else cfg


def both_ways(cfg: ModelConfig) -> ModelConfig:
    """`cfg` of an embedding model: files count both sides of a token; we count one, with the token itself."""
    kinds = tuple(replace(kind, window=kind.window and kind.window // 2 + 1) for kind in cfg.kinds)
    return replace(cfg, bidirectional=True, kinds=kinds)


def local_rope_hf(f: Fields, cfg: ModelConfig) -> RopeConfig:
    if "sliding_attention" in f.part("rope_parameters").values:
        return hf_rope(f, cfg.head_dim, "sliding_attention")
    return RopeConfig(f.number("rope_local_base_freq", 1, MOST_THETA, default=10000), cfg.head_dim)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    cfg = with_local_layers(f, cfg, PATTERN)
    # Files without a scale mean that of the head, save for the one size whose heads are narrower than their share.
    share = cfg.width / cfg.n_heads if cfg.n_layers == N_LAYERS_27B else cfg.head_dim
    scale = f.number("attention.scale", 0, MOST_MULTIPLIER, default=share**-0.5)
    cfg = replace(cfg, activation="gelu_tanh", attn_scale=scale)
    local = RopeConfig(f.number("rope.freq_base_swa", 1, MOST_THETA, default=10000), cfg.head_dim)
    return shaped(cfg, local, f.number("final_logit_softcapping", -1, MOST_MULTIPLIER, default=0))


def shaped(cfg: ModelConfig, local: RopeConfig, softcap: float) -> ModelConfig:
    """Fill in the facts that both kinds of file leave out."""
    kinds = tuple(replace(kind, rope=local) if kind.window else kind for kind in cfg.kinds)
    return replace(cfg, kinds=kinds, embed_scale=cfg.width**0.5, logit_softcap=softcap)


GGUF_NAMES = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GEMMA3 = Family(
    "gemma3",
    build,
    SamplingParams(temperature=1.0, top_k=64, top_p=0.95),
    refine_hf,
    refine_gguf,
    # Released configs leave out whatever equals these.
    hf_defaults={
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    gguf_names=GGUF_NAMES,
)
