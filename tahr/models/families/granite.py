"""Granite: llama whose embeddings, residuals, attention scores and logits are scaled by constants."""

from dataclasses import replace

from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_MULTIPLIER, ModelConfig
from tahr.models.families import llama
from tahr.models.family import Family


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return scaled(f, cfg, "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    cfg = llama.refine_gguf(f, cfg)
    return scaled(f, cfg, "embedding_scale", "residual_scale", "attention.scale", "logit_scale")


def scaled(f: Fields, cfg: ModelConfig, embed: str, residual: str, attention: str, logits: str) -> ModelConfig:
    def factor(name: str) -> float:
        return f.number(name, 0, MOST_MULTIPLIER, default=1)

    return replace(
        cfg,
        embed_scale=factor(embed),
        residual_scale=factor(residual),
        attn_scale=factor(attention),
        logit_scale=1 / factor(logits),
    )


GRANITE = Family("granite", llama.build, refine_hf=refine_hf, refine_gguf=refine_gguf)
