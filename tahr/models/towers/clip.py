"""CLIP: a causal text model and a vision transformer, whose vectors are compared."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tahr.errors import UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig, VisionConfig
from tahr.models.families.gpt import gpt2
from tahr.models.family import Family
from tahr.models.files.hf import common
from tahr.models.parts.arrange import Tensors
from tahr.models.towers.arranging import arrange_tower
from tahr.models.towers.vit import seeing

MOST_SIDE = 4096
MOST_PATCHES = 1 << 13


def both_ways(cfg: ModelConfig) -> ModelConfig:
    """`cfg` of layers in which every row sees all others."""
    return replace(plain_layers(cfg), bidirectional=True)


def plain_layers(cfg: ModelConfig) -> ModelConfig:
    """`cfg` of layers with layer norms, biases and no rope."""
    return replace(gpt2.layer_normed(gpt2.unrotated(cfg)), qkv_bias=True, out_bias=True, mlp_bias=True)


def positioned(cfg: ModelConfig) -> ModelConfig:
    """`cfg` with learned positions for its whole context."""
    return replace(cfg, n_positions=cfg.max_context)


def vision_config(
    f: Fields, family: str, defaults: Mapping[str, Any], pooling: str = "last", has_class: bool = True, **more: Any
) -> VisionConfig:
    """The tower that a config.json describes; `more` is what is known of the family."""
    part = with_defaults(f.part("vision_config"), defaults)
    if part.count("num_channels", 4) != 3:
        raise UnsupportedModel("The model reads images of other than three colours; Tahr reads RGB.")
    side = part.count("image_size", MOST_SIDE)
    patch = part.count("patch_size", MOST_SIDE)
    n_patches = (side // patch) ** 2
    if not 0 < n_patches <= MOST_PATCHES:
        raise part.wrong("patch_size", f"a part of image_size that gives at most {MOST_PATCHES} patches")
    layers = both_ways(common(part, family))
    return VisionConfig(
        layers=layers,
        patch_size=patch,
        n_positions=n_patches + has_class,
        text_pooling=pooling,
        **{"head": "class", "processor": "CLIP", **more},
    )


def with_defaults(part: Fields, defaults: Mapping[str, Any]) -> Fields:
    """A part of a config.json as that of a model of texts, which has a vocabulary."""
    known = {**defaults, **{name: value for name, value in part.values.items() if value is not None}}
    return replace(part, values={**known, "vocab_size": 1, "rms_norm_eps": known.get("layer_norm_eps")})


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    width_out = f.count("projection_dim", limits.MOST_WIDTH, default=512)
    vision = vision_config(f, cfg.family, VISION, width_out=width_out)
    return replace(positioned(plain_layers(cfg)), vision=vision, tied=True)


VISION = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
TEXT = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "vocab_size": 49408,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
LAYER_NAMES = {
    "layer_norm1": "input_layernorm",
    "layer_norm2": "post_attention_layernorm",
    "out_proj": "o_proj",
    "fc1": "up_proj",
    "fc2": "down_proj",
}
TOWER_NAMES = {
    "vision_model.encoder.layers": "vision.layers",
    "vision_model.embeddings.class_embedding": "vision.class_embedding",
    "vision_model.embeddings.patch_embedding": "vision.patch",
    "vision_model.embeddings.position_embedding": "vision.positions",
    "vision_model.pre_layrnorm": "vision.norm",
    "vision_model.post_layernorm": "vision.post_norm",
    "vision_model.head": "vision.head",
    "visual_projection": "vision.projection",
}
TEXT_NAMES = {
    "text_model.encoder.layers": "model.layers",
    "text_model.embeddings.token_embedding": "model.embed_tokens",
    "text_model.embeddings.position_embedding": "model.embed_positions",
    "text_model.final_layer_norm": "model.norm",
    "text_projection": "dense.0",
}


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    tensors.drop("logit_scale")
    return arrange_tower(cfg, tensors)


CLIP = Family(
    "clip",
    seeing(gpt2.build),
    refine_hf=refine_hf,
    hf_defaults=TEXT,
    hf_fields={"rms_norm_eps": "layer_norm_eps"},
    hf_names=LAYER_NAMES | TOWER_NAMES | TEXT_NAMES,
    arrange=arrange,
)
