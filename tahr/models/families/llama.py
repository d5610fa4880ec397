"""Llama; Mistral, which is llama with a sliding window; Mixtral, which is llama with experts."""

from collections.abc import Callable
from dataclasses import replace

from tahr.config import SamplingParams
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.config.rope import MOST_CONTEXT
from tahr.models.decoder import Decoder, decoder_of
from tahr.models.family import Family
from tahr.models.files.gguf import gguf_experts
from tahr.models.files.hf import hf_experts, with_experts, with_windows
from tahr.models.parts.attention import Attention
from tahr.models.parts.mlp import Experts, GatedMLP
from tahr.models.parts.sublayers import DecoderLayer, Mixer
from tahr.models.parts.weights import Weights


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    return build_with(cfg, w, lambda i, at: Attention(cfg, i, at.at("self_attn")))


def build_with(cfg: ModelConfig, w: Weights, attention: Callable[[int, Weights], Mixer]) -> Decoder:
    """A llama whose attention sublayers are made by `attention` of a number and weights."""

    def layer(i: int, at: Weights) -> DecoderLayer:
        return DecoderLayer(
            attention=attention(i, at),
            ffn=(Experts if cfg.kinds[i].sparse else GatedMLP)(cfg, at.at("mlp")),
            norms=at.pick("input_layernorm", "post_attention_layernorm"),
        )

    return decoder_of(cfg, w, layer)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """GGUF files of this architecture hold queries and keys in pairs order, and mixtures of experts as well."""
    if f.count("expert_count", limits.MOST_EXPERTS, default=0, least=0):
        cfg = with_experts(cfg, gguf_experts(f))
    window = f.count("attention.sliding_window", MOST_CONTEXT, default=0, least=0)
    return replace(cfg, rope_style="pairs", kinds=tuple(replace(kind, window=window) for kind in cfg.kinds))


def refine_mistral(f: Fields, cfg: ModelConfig) -> ModelConfig:
    window = f.count("sliding_window", MOST_CONTEXT, default=0, least=0)
    return with_windows(f, cfg, window, sliding=lambda i: True)


def refine_mixtral(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return with_experts(refine_mistral(f, cfg), hf_experts(f, "num_local_experts", "intermediate_size"))


def refine_internlm(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """Checkpoints from before transformers knew the family have other names for its biases."""
    bias = f.flag("bias")
    qkv = f.flag("qkv_bias")
    return replace(cfg, qkv_bias=cfg.qkv_bias or qkv, out_bias=cfg.out_bias or bias, mlp_bias=cfg.mlp_bias or bias)


SAMPLING = SamplingParams(temperature=0.6, top_p=0.9)
LLAMA = Family("llama", build, SAMPLING, refine_gguf=refine_gguf)
# A Mistral config that does not mention the window means the first release's; an explicit null means none.
MISTRAL = Family("mistral", build, SAMPLING, refine_mistral, refine_gguf, hf_defaults={"sliding_window": 4096})
# Ministral 8B says layer by layer which has a window.
MINISTRAL = Family("ministral", build, SAMPLING, refine_mistral, refine_gguf, hf_defaults={"sliding_window": 4096})
INTERNLM3 = Family("internlm3", build, SAMPLING, refine_internlm)
MIXTRAL = Family(
    "mixtral",
    build,
    SAMPLING,
    refine_mixtral,
    refine_gguf,
    hf_defaults={"rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2},
    hf_names={"block_sparse_moe": "mlp", "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"},
)
