"""Chinese-CLIP: BERT's states of the first token, and the tower of CLIP."""

from dataclasses import replace

from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.encoders import bert
from tahr.models.family import Family, with_prefix
from tahr.models.parts.arrange import Tensors
from tahr.models.towers import clip
from tahr.models.towers.vit import seeing


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    width_out = f.count("projection_dim", limits.MOST_WIDTH, default=512)
    vision = clip.vision_config(f, cfg.family, clip.VISION, processor="ChineseCLIP", width_out=width_out, pooling="cls")
    return replace(bert.refine_hf(f, cfg), vision=vision)


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    return bert.arrange(cfg, clip.arrange(cfg, tensors))


CHINESE_CLIP = Family(
    "chinese_clip",
    seeing(bert.build),
    refine_hf=refine_hf,
    hf_defaults={**bert.DEFAULTS, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
    | {"num_attention_heads": 12},
    hf_fields=bert.FIELDS,
    hf_names=bert.LAYER_NAMES
    | with_prefix("text_model.", bert.TOP_NAMES)
    | clip.LAYER_NAMES
    | clip.TOWER_NAMES
    | {"text_projection": "dense.0"},
    arrange=arrange,
)
