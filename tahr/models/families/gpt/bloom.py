"""Bloom: GPT-2 without positions; keys further away score less (ALiBi), and embeddings are normed."""

from dataclasses import replace

from tahr.models.config import ModelConfig
from tahr.models.families.gpt import gpt2
from tahr.models.family import Family
from tahr.models.fields import Fields
from tahr.models.hf import times

STEEPEST = 8.0


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(refine_gguf(f, cfg), qkv_bias=True, out_bias=True, mlp_bias=True)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(gpt2.unrotated(gpt2.layer_normed(cfg)), alibi=STEEPEST, activation="gelu_tanh")


BLOOM = Family(
    *("bloom", gpt2.build),
    refine_hf=refine_hf,
    refine_gguf=refine_gguf,
    hf_defaults={"tie_word_embeddings": True},
    hf_fields={
        "hidden_size": "n_embed",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "seq_length",
        "rms_norm_eps": "layer_norm_epsilon",
        "intermediate_size": lambda config: times("hidden_size", 4)(config) or times("n_embed", 4)(config),
    },
    hf_names={
        **{prefix + "h": "model.layers" for prefix in ("", "transformer.")},
        **{prefix + "word_embeddings": "model.embed_tokens" for prefix in ("", "transformer.")},
        **{prefix + "word_embeddings_layernorm": "model.embed_norm" for prefix in ("", "transformer.")},
        **{prefix + "ln_f": "model.norm" for prefix in ("", "transformer.")},
        "self_attention.query_key_value": "self_attn.qkv_by_head",
        "self_attention.dense": "self_attn.o_proj",
        "dense_h_to_4h": "up_proj",
        "dense_4h_to_h": "down_proj",
    },
    arrange=gpt2.split_by_head,
)
