"""StableLM: llama with layer norms and rope on part of each head; the halves of the large one read the same rows, and
its query and key heads have layer norms."""

from dataclasses import replace

from tahr.config import SamplingParams
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder, decoder_of
from tahr.models.families.gpt.gpt2 import layer_normed
from tahr.models.family import Family
from tahr.models.parts.attention import Attention, layer_normed_heads
from tahr.models.parts.mlp import GatedMLP
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.weights import Weights


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    def layer(i: int, at: Weights) -> DecoderLayer:
        first = at.norm("input_layernorm")
        parallel = cfg.parallel or not at.has("post_attention_layernorm.weight")
        second = first if parallel else at.norm("post_attention_layernorm")
        attn = at.at("self_attn")
        attention = Attention(cfg, i, attn, layer_normed_heads(cfg, attn))
        mlp = GatedMLP(cfg, at.at("mlp"))
        return DecoderLayer(attention, mlp, (first, second), parallel=parallel)

    return decoder_of(cfg, w, layer)


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    cfg = replace(layer_normed(cfg), qkv_bias=f.flag("use_qkv_bias"), out_bias=False)
    return replace(cfg, parallel=f.flag("use_parallel_residual"), qk_layer_norms=f.flag("qk_layernorm"))


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    # Sublayers read the same rows in the size that has one norm a layer.
    return layer_normed(cfg)


STABLELM = Family(
    "stablelm",
    build,
    SamplingParams(temperature=0.7, top_p=0.95),
    refine_hf,
    refine_gguf,
    hf_defaults={"partial_rotary_factor": 0.25},
    hf_fields={"rms_norm_eps": "layer_norm_eps"},
    hf_names={"q_layernorm.norms": "q_norm", "k_layernorm.norms": "k_norm"},
)
