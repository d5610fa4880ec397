"""MPT: GPT-2 without biases, with ALiBi, whose queries, keys and values may be held within bounds."""

from dataclasses import replace

from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_MULTIPLIER, ModelConfig
from tahr.models.families.gpt import gpt2
from tahr.models.family import Family
from tahr.models.files.hf import times

MOST_STEEP = 64


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    attention = f.part("attn_config")
    for name in ("prefix_lm", "qk_ln"):
        if attention.flag(name):
            raise UnsupportedModel(f"This MPT is trained with {name}, which Tahr does not have; choose another model.")
    if not attention.flag("alibi", True) or not f.flag("no_bias", True):
        raise UnsupportedModel("This MPT has biases or learned positions; Tahr runs those without, with ALiBi.")
    steepest = attention.number("alibi_bias_max", 0, MOST_STEEP, default=8)
    clip = attention.number("clip_qkv", -1, MOST_MULTIPLIER, default=0)
    scale = attention.number("softmax_scale", 0, MOST_MULTIPLIER, default=cfg.attn_scale)
    return replace(shaped(cfg, steepest, clip), attn_scale=scale)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    steepest = f.number("attention.max_alibi_bias", 0, MOST_STEEP)
    return shaped(cfg, steepest, f.number("attention.clamp_kqv", -1, MOST_MULTIPLIER, default=0))


def shaped(cfg: ModelConfig, steepest: float, clip: float) -> ModelConfig:
    return replace(gpt2.unrotated(gpt2.layer_normed(cfg)), alibi=steepest, qkv_clip=clip, activation="gelu")


MPT = Family(
    "mpt",
    gpt2.build,
    refine_hf=refine_hf,
    refine_gguf=refine_gguf,
    hf_defaults={"tie_word_embeddings": True},
    hf_fields={
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "max_position_embeddings": "max_seq_len",
        "rms_norm_eps": "layer_norm_epsilon",
        "intermediate_size": lambda config: times("d_model", config.get("expansion_ratio") or 4)(config),
    },
    hf_names={
        "transformer.blocks": "model.layers",
        "transformer.wte": "model.embed_tokens",
        "transformer.norm_f": "model.norm",
        "norm_1": "input_layernorm",
        "norm_2": "post_attention_layernorm",
        "attn.Wqkv": "self_attn.qkv_proj",
        "attn.out_proj": "self_attn.o_proj",
        "ffn": "mlp",
    },
    arrange=gpt2.split_qkv,
)
