"""Ministral 3 and the text models of Mistral 3: llama with YaRN, whose queries grow with the position in long texts."""

from dataclasses import replace

from tahr.backends.api import AttentionScaling
from tahr.config import SamplingParams
from tahr.errors import CorruptFile
from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_MULTIPLIER, ModelConfig
from tahr.models.config.rope import MOST_FACTOR, Yarn, sharpness
from tahr.models.families import llama
from tahr.models.family import Family


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    beta = f.part("rope_parameters").number("llama_4_scaling_beta", -1, MOST_MULTIPLIER, default=0)
    return with_attention_scaling(llama.refine_mistral(f, cfg), beta)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    cfg = llama.refine_gguf(f, cfg)
    log_multiplier = f.number("rope.scaling.yarn_log_multiplier", -1, MOST_FACTOR, default=0)
    rope = replace(cfg.kinds[0].rope, scaling=less_sharp(cfg.kinds[0].rope.scaling, log_multiplier))
    kinds = tuple(replace(kind, rope=rope) for kind in cfg.kinds)
    beta = f.number("attention.temperature_scale", -1, MOST_MULTIPLIER, default=0)
    return with_attention_scaling(replace(cfg, kinds=kinds), beta)


def less_sharp(scaling: object, log_multiplier: float) -> Yarn | None:
    """YaRN whose attention factor is divided by the one that this multiplier stands for."""
    if not isinstance(scaling, Yarn):
        return None
    return replace(scaling, attention=scaling.attention / sharpness(scaling.factor, log_multiplier))


def with_attention_scaling(cfg: ModelConfig, beta: float) -> ModelConfig:
    if not beta:
        return cfg
    scaling = cfg.kinds[0].rope.scaling
    if not isinstance(scaling, Yarn):
        raise CorruptFile("The model scales queries by their position but does not say from where on; fetch it again.")
    return replace(cfg, attn_scaling=AttentionScaling(beta, scaling.old_context))


MINISTRAL3 = Family("ministral3", llama.build, SamplingParams(temperature=0.15), refine_hf, refine_gguf)
