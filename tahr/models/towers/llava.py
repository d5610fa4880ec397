"""LLaVA 1.5: a llama that reads every patch of CLIP's tower, without the last layers of it. LLaVA 1.6 reads tiles of an
image line by line, behind all of it."""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import ChatVisionConfig, ImagePlace, ModelConfig
from tahr.models.families import llama, qwen2
from tahr.models.family import Family, Refine, unchanged
from tahr.models.files.hf import activation
from tahr.models.parts.arrange import Tensors
from tahr.models.towers import clip
from tahr.models.towers.arranging import CLASS, PATCH, arrange_tower
from tahr.models.towers.projecting import with_projecting_tower

VISION = {
    **clip.VISION,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
# Released files say little more of their text models than how large the vocabulary is.
TEXT = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
TEXT_MODELS: dict[str, Refine] = {"llama": unchanged, "llava": unchanged}  # the latter where nothing is said of it
LAYER_BEFORE_LAST = -2
PLACEHOLDER = 32000


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return seeing(f, cfg, TEXT_MODELS)


def refine_next(f: Fields, cfg: ModelConfig) -> ModelConfig:
    cfg = seeing(f, cfg, NEXT_TEXT_MODELS)
    if cfg.chat_vision is None:
        return cfg
    place = replace(cfg.chat_vision.place, tiles="lines")
    return replace(cfg, chat_vision=replace(cfg.chat_vision, place=place, processor="LlavaNext"))


def refine_mistral(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return llama.refine_mistral(replace(f, values={**llama.MISTRAL.hf_defaults, **f.values}), cfg)


NEXT_TEXT_MODELS: dict[str, Refine] = {
    "llama": unchanged,
    "llava_next": unchanged,  # where nothing is said of it
    "mistral": refine_mistral,
    "qwen2": qwen2.refine_hf,
}


def seeing(f: Fields, cfg: ModelConfig, text_models: Mapping[str, Refine]) -> ModelConfig:
    """`cfg` of one of these text models, with the tower that a config.json describes."""
    kind = f.text("model_type")
    if kind not in text_models:
        known = ", ".join(name for name in text_models if not name.startswith("llava"))
        raise UnsupportedModel(
            f"The text model of this LLaVA is a {kind[:80]!r}; Tahr reads those with {known}. Choose one of these."
        )
    cfg = text_models[kind](f, cfg)
    if not isinstance(f.get("vision_config"), Mapping):
        return cfg
    return replace(cfg, chat_vision=tower_config(f, cfg))


def tower_config(f: Fields, cfg: ModelConfig) -> ChatVisionConfig:
    check_kind(f)
    tower = clip.vision_config(f, cfg.family, VISION, width_out=cfg.width)
    n_layers = layers_run(f, tower.layers.n_layers)
    return ChatVisionConfig(
        layers=replace(tower.layers, n_layers=n_layers, kinds=tower.layers.kinds[:n_layers]),
        processor=tower.processor,
        patch_size=tower.patch_size,
        merge=1,
        n_positions=tower.n_positions,
        width_out=cfg.width,
        place=ImagePlace(placeholder_of(f, cfg)),
        side=isqrt(tower.n_patches),
        activation=activation(replace(f, values={"projector_hidden_act": "gelu", **f.values}), "projector_hidden_act"),
    )


def check_kind(f: Fields) -> None:
    """Refuse towers that are put together in other ways."""
    kind = f.part("vision_config").text("model_type", "clip_vision_model")
    if kind != "clip_vision_model":
        raise UnsupportedModel(f"The tower of this LLaVA is a {kind[:80]!r}; Tahr reads CLIP's alone.")
    strategy = f.text("vision_feature_select_strategy", "default")
    if strategy != "default":
        raise UnsupportedModel(f"This LLaVA reads {strategy[:80]!r} of its tower; Tahr knows 'default', all patches.")


def layers_run(f: Fields, n_layers: int) -> int:
    """Layers of the tower up to the one whose states are read, which may be counted from the end."""
    stated: Any = f.get("vision_feature_layer")
    at = LAYER_BEFORE_LAST if stated is None else stated
    n = at if not isinstance(at, int) or at >= 0 else n_layers + 1 + at
    if not isinstance(n, int) or isinstance(at, bool) or not 0 < n <= n_layers:
        raise f.wrong("vision_feature_layer", f"one of the {n_layers} layers")
    return n


def placeholder_of(f: Fields, cfg: ModelConfig, default: int = PLACEHOLDER) -> int:
    """The token that stands for an image, under its newer name or its older one."""
    name = "image_token_index" if f.get("image_token_id") is None else "image_token_id"
    return f.count(name, cfg.n_vocab - 1, default=default, least=0)


# ---- tensors --------------------------------------------------------------------------------------------------------

PROJECTOR = {"linear_1": "up", "linear_2": "down"}


def with_places(names: Mapping[str, str], *places: str) -> dict[str, str]:
    """Names of parts that stand in any of these places of a checkpoint."""
    return {f"{place}{name}": canonical for name, canonical in names.items() for place in places}


TOWER_NAMES = {name.removeprefix("vision_model."): canonical for name, canonical in clip.TOWER_NAMES.items()}
NAMES = {
    **clip.LAYER_NAMES,
    **with_places(TOWER_NAMES, "vision_tower.", "model.vision_tower."),
    **with_places(TOWER_NAMES, "vision_tower.vision_model.", "model.vision_tower.vision_model."),
    **with_places(
        {name: f"vision.projector.{own}" for name, own in PROJECTOR.items()},
        "multi_modal_projector.",
        "model.multi_modal_projector.",
    ),
    **with_places({"image_newline": "vision.line_end"}, "", "model."),
}


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    """The tower's tensors, if the files have a tower; what stands behind the layer that is read is left alone."""
    if cfg.chat_vision is None or PATCH not in tensors:
        return tensors
    read = {f"vision.layers.{i}" for i in range(cfg.chat_vision.layers.n_layers)}
    for name in list(tensors):
        is_layer = name.startswith("vision.layers.")
        if name.startswith("vision.post_norm.") or (is_layer and ".".join(name.split(".")[:3]) not in read):
            tensors.drop(name)
    for name in (CLASS, "vision.norm.weight"):
        tensors.make_of(name)  # a file without it is refused: towers of others have none
    return arrange_tower(cfg, tensors)


LLAVA = Family(
    "llava",
    with_projecting_tower(llama.build),
    llama.SAMPLING,
    refine_hf=refine_hf,
    hf_defaults=TEXT,
    hf_names=NAMES,
    arrange=arrange,
)
LLAVA_NEXT = replace(LLAVA, name="llava_next", refine_hf=refine_next)
