"""StableLM: llama with layer norms and rope on part of each head; the halves of the large one read the same rows."""

from dataclasses import replace

from tahr.config import SamplingParams
from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder, decoder_of
from tahr.models.families.gpt.gpt2 import layer_normed
from tahr.models.family import Family
from tahr.models.parts.attention import Attention
from tahr.models.parts.mlp import GatedMLP
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.weights import Weights


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    def layer(i: int, at: Weights) -> DecoderLayer:
        first = at.norm("input_layernorm")
        second = first if cfg.parallel else at.norm("post_attention_layernorm")
        attention = Attention(cfg, i, at.at("self_attn"))
        mlp = GatedMLP(cfg, at.at("mlp"))
        return DecoderLayer(attention, mlp, (first, second), parallel=cfg.parallel)

    return decoder_of(cfg, w, layer)


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    if f.flag("qk_layernorm"):
        raise UnsupportedModel("This StableLM (12B) norms queries and keys, which Tahr does not have yet.")
    cfg = replace(layer_normed(cfg), qkv_bias=f.flag("use_qkv_bias"), out_bias=False)
    return replace(cfg, parallel=f.flag("use_parallel_residual"))


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    # The sizes whose sublayers read the same rows are those that norm queries and keys.
    return layer_normed(cfg)


STABLELM = Family(
    "stablelm",
    build,
    SamplingParams(temperature=0.7, top_p=0.95),
    refine_hf,
    refine_gguf,
    hf_defaults={"partial_rotary_factor": 0.25},
    hf_fields={"rms_norm_eps": "layer_norm_eps"},
)
