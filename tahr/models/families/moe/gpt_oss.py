"""GPT-OSS: experts with biases and a clamped gate in every layer, a learned sink per head, a window on every other
layer. Released checkpoints keep the experts in MXFP4, gate and up row by row."""

from dataclasses import replace

from tahr.config import SamplingParams
from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_MULTIPLIER, ModelConfig, MoeConfig
from tahr.models.config.rope import MOST_CONTEXT, Yarn
from tahr.models.decoder import Decoder
from tahr.models.families import llama
from tahr.models.family import Family
from tahr.models.files.gguf import gguf_experts, with_local_layers
from tahr.models.files.hf import hf_experts, with_experts, with_windows
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.attention import Attention
from tahr.models.parts.weights import Weights

PERIOD = 2


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    return llama.build_with(cfg, w, lambda i, at: Attention(cfg, i, at.at("self_attn"), sinks=True))


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    assert cfg.moe is not None
    tensors.transpose({"mlp.experts.gate_up_turned": "mlp.experts.gate_up", "mlp.experts.down_turned": DOWN})
    tensors.join_mxfp4("mlp.experts.gate_up")
    tensors.join_mxfp4(DOWN)
    row_by_row = {"mlp.experts.gate_proj": 1, "mlp.experts.up_proj": 1}
    tensors.split("mlp.experts.gate_up", row_by_row, n_groups=cfg.moe.ffn_width)
    return tensors


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    for name, value in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if f.number(name, 0, MOST_MULTIPLIER, default=value) != value:
            raise UnsupportedModel(f"This GPT-OSS has a {name} of {f.get(name)}; Tahr runs those with {value}.")
    cfg = with_windows(f, cfg, f.count("sliding_window", MOST_CONTEXT), sliding=lambda i: (i + 1) % PERIOD != 0)
    return shaped(cfg, hf_experts(f, "num_local_experts", "intermediate_size", biased=True))


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return shaped(with_local_layers(f, cfg, PERIOD), gguf_experts(f, biased=True))


def shaped(cfg: ModelConfig, moe: MoeConfig) -> ModelConfig:
    scaling = cfg.kinds[0].rope.scaling
    # Between pairs, wherever the blend begins: GGUF files do not say so.
    rope = replace(cfg.kinds[0].rope, scaling=replace(scaling, whole=False)) if isinstance(scaling, Yarn) else None
    kinds = tuple(replace(kind, rope=rope or kind.rope) for kind in cfg.kinds)
    return with_experts(replace(cfg, kinds=kinds, activation="clamped_swiglu", qkv_bias=True, out_bias=True), moe)


DOWN = "mlp.experts.down_proj"
GPT_OSS = Family(
    "gpt_oss",
    build,
    SamplingParams(temperature=1.0, top_p=1.0),
    refine_hf,
    refine_gguf,
    hf_defaults={"sliding_window": 128, "num_experts_per_tok": 4, "rope_theta": 150000.0, "head_dim": 64},
    gguf_names={"post_attention_norm": "post_attention_layernorm"},
    hf_names={
        "sinks": "sinks.weight",
        "mlp.router": "mlp.gate",
        "experts.gate_up_proj": "experts.gate_up_turned.weight",
        "experts.gate_up_proj_bias": "experts.gate_up.bias",
        "experts.gate_up_proj_blocks": "experts.gate_up_blocks.weight",
        "experts.gate_up_proj_scales": "experts.gate_up_scales.weight",
        "experts.down_proj": "experts.down_turned.weight",
        "experts.down_proj_bias": "experts.down_proj.bias",
        "experts.down_proj_blocks": "experts.down_proj_blocks.weight",
        "experts.down_proj_scales": "experts.down_proj_scales.weight",
    },
    quantised=("mxfp4",),
    arrange=arrange,
)
