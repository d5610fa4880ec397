"""GLM 4: llama whose rope turns half of each head in pairs, with biases on queries, keys and values, and gate and up in
one matrix. The newer one also has norms after each half."""

from dataclasses import replace

from tahr.config import SamplingParams
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder, decoder_of
from tahr.models.families import llama, phi3
from tahr.models.family import Family
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.attention import Attention
from tahr.models.parts.mlp import GatedMLP
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.weights import Weights


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    def layer(i: int, at: Weights) -> DecoderLayer:
        return DecoderLayer(
            attention=Attention(cfg, i, at.at("self_attn")),
            ffn=GatedMLP(cfg, at.at("mlp")),
            norms=at.pick("input_layernorm", "post_attention_layernorm"),
            after=at.pick("post_self_attn_layernorm", "post_mlp_layernorm"),
        )

    return decoder_of(cfg, w, layer)


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    return phi3.arrange(cfg, tensors)


def refine(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(cfg, rope_style="pairs", out_bias=False)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    biased = cfg.qkv_bias or f.get("attention.qkv_bias") is True
    return replace(cfg, rope_style="pairs", out_bias=False, qkv_bias=biased)


SAMPLING = SamplingParams(temperature=0.8, top_p=0.8)
DEFAULTS = {"partial_rotary_factor": 0.5, "attention_bias": True, "head_dim": 128, "rms_norm_eps": 1.5625e-07}
GGUF_NAMES = {"ffn_up": "mlp.gate_up_proj"}
GLM = Family("glm", llama.build, SAMPLING, refine, refine_gguf, DEFAULTS, GGUF_NAMES, arrange=arrange)
GLM4 = Family(
    "glm4",
    build,
    SAMPLING,
    refine,
    refine_gguf,
    DEFAULTS,
    gguf_names={
        **GGUF_NAMES,
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
    },
    arrange=arrange,
)
