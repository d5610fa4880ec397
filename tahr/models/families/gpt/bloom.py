"""Bloom: GPT-2 without positions; keys further away score less (ALiBi), and embeddings are normed."""

from dataclasses import replace

from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.families.gpt import gpt2
from tahr.models.family import Family, with_prefix
from tahr.models.files.hf import times

STEEPEST = 8.0
EMBEDDINGS = {"word_embeddings": "model.embed_tokens", "word_embeddings_layernorm": "model.embed_norm"}


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    if f.flag("apply_residual_connection_post_layernorm"):
        raise UnsupportedModel("This Bloom adds to normed rows, which Tahr does not; choose another.")
    return replace(refine_gguf(f, cfg), qkv_bias=True, out_bias=True, mlp_bias=True)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(gpt2.unrotated(gpt2.layer_normed(cfg)), alibi=STEEPEST, activation="gelu_tanh")


BLOOM = Family(
    "bloom",
    gpt2.build,
    refine_hf=refine_hf,
    refine_gguf=refine_gguf,
    hf_defaults={"tie_word_embeddings": True},
    hf_fields={
        "hidden_size": "n_embed",
        **gpt2.FIELDS,
        "max_position_embeddings": "seq_length",
        "intermediate_size": lambda config: times("hidden_size", 4)(config) or times("n_embed", 4)(config),
    },
    hf_names={
        **with_prefix("transformer.", gpt2.LAYERS_AND_NORM | EMBEDDINGS),
        **gpt2.BY_HEAD,
    },
    arrange=gpt2.split_by_head,
)
