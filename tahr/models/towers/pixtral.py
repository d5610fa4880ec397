"""Pixtral's tower: images of any size, whose lines end with tokens of their own. Mistral 3 joins squares of patches."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import ChatVisionConfig, ImagePlace, ModelConfig
from tahr.models.config.rope import in_the_plane
from tahr.models.encoders.layers import of_floats
from tahr.models.families import llama, ministral3
from tahr.models.family import Family
from tahr.models.files.hf import MOST_THETA, activation, common
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.makers import Make
from tahr.models.towers.arranging import PATCH, flat, mismatch
from tahr.models.towers.clip import MOST_SIDE
from tahr.models.towers.joined import with_joining_tower
from tahr.models.towers.llava import layers_run, placeholder_of, with_places
from tahr.models.towers.qwen_vl import MOST_MERGE
from tahr.weights.tensor import HostTensor

VISION = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "patch_size": 16,
    "hidden_act": "gelu",
}
NORM_EPS = 1e-5
THETA = 10000.0
PLACEHOLDER = 10
LINE_ENDS = ("[IMG_BREAK]", "[IMG_END]")


def seeing(f: Fields, cfg: ModelConfig, merge: int, last_layer: int) -> ModelConfig:
    """`cfg` with the tower that a config.json describes, whose states behind a layer are read."""
    stated = f.part("vision_config")
    known = {**VISION, **{name: value for name, value in stated.values.items() if value is not None}}
    part = replace(stated, values={**known, "vocab_size": 1, "rms_norm_eps": NORM_EPS})
    if part.count("num_channels", 4) != 3:
        raise UnsupportedModel("The model reads images of other than three colours; Tahr reads RGB.")
    layers = common(part, cfg.family)
    if layers.head_dim % 4 or layers.head_dim * layers.n_heads != layers.width:
        raise part.wrong("num_attention_heads", "a number that gives heads of a multiple of 4 numbers")
    theta = part.part("rope_parameters").get("rope_theta") or part.get("rope_theta")
    theta = Fields({"rope_theta": theta}, part.where).number("rope_theta", 1, MOST_THETA, default=THETA)
    rope = in_the_plane(theta, layers.head_dim, between=True)
    n_layers = layers_run(replace(f, values={"vision_feature_layer": last_layer, **f.values}), layers.n_layers)
    kinds = tuple(replace(kind, rope=rope, window=0) for kind in layers.kinds[:n_layers])
    layers = replace(layers, bidirectional=True, n_layers=n_layers, kinds=kinds)
    named = replace(f, values={"projector_hidden_act": "gelu", **f.values})
    vision = ChatVisionConfig(
        layers=layers,
        processor="Pixtral",
        patch_size=part.count("patch_size", MOST_SIDE),
        merge=merge,
        n_positions=0,
        width_out=cfg.width,
        place=ImagePlace(placeholder_of(f, cfg, PLACEHOLDER), line_ends=LINE_ENDS),
        activation=activation(named, "projector_hidden_act"),
        projector="merged",
        gated=True,
    )
    return replace(cfg, chat_vision=vision)


def refined(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """A text model with the tower of the files around it: Mistral 3, or Pixtral, which is put together as a LLaVA."""
    if not isinstance(f.get("vision_config"), Mapping):
        return cfg
    kind = f.part("vision_config").text("model_type", "pixtral")
    if kind != "pixtral":
        raise UnsupportedModel(f"The tower of this {cfg.family} is a {kind[:80]!r}; Tahr reads Pixtral's alone.")
    strategy = f.text("vision_feature_select_strategy")
    if strategy not in ("", "full"):
        raise UnsupportedModel(f"This Pixtral reads {strategy[:80]!r} of its tower; Tahr knows 'full', all patches.")
    merge = 1 if strategy else f.count("spatial_merge_size", MOST_MERGE, default=2)
    return seeing(f, cfg, merge, last_layer=-1)


# ---- tensors --------------------------------------------------------------------------------------------------------

JOINED = "vision.merger.joined.weight"
TOWER = {
    "patch_conv": "vision.patch",
    "ln_pre": "vision.norm",
    "transformer.layers": "vision.layers",
}
PROJECTOR = {
    "norm": "vision.merger.norm",
    "patch_merger.merging_layer": "vision.merger.joined",
    "linear_1": "vision.merger.up",
    "linear_2": "vision.merger.down",
}
NAMES = {
    **with_places(TOWER, "vision_tower.", "model.vision_tower."),
    **with_places(PROJECTOR, "multi_modal_projector.", "model.multi_modal_projector."),
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention": "self_attn",
    "feed_forward": "mlp",
}


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    """The tower's tensors, if the files have a tower; layers behind the one that is read are left alone."""
    vision = cfg.chat_vision
    if vision is None or PATCH not in tensors:
        return tensors
    tensors.define(PATCH, flat(tensors.take(PATCH), vision))
    if vision.merge > 1:
        tensors.define(JOINED, patch_by_patch(tensors.take(JOINED), vision))
    read = {f"vision.layers.{i}" for i in range(vision.layers.n_layers)}
    for name in list(tensors):
        if name.startswith("vision.layers.") and ".".join(name.split(".")[:3]) not in read:
            tensors.drop(name)
    return tensors


def patch_by_patch(stored: Make, cfg: ChatVisionConfig) -> Make:
    """A matrix of the numbers of a square, stored number by number, for those that come patch by patch."""
    width, n = cfg.layers.width, cfg.n_merged

    def make() -> HostTensor:
        matrix = stored()
        if matrix.shape != (width, n * width):
            raise mismatch(matrix, (width, n * width))
        turned = matrix.dense().reshape(width, width, n).swapaxes(1, 2)
        return of_floats(matrix.name, np.ascontiguousarray(turned).reshape(width, -1))

    return make


def with_pixtral(family: Family) -> Family:
    """A text model that reads images where its files have a tower."""
    return replace(
        family,
        build=lambda cfg, w: with_joining_tower(family.build(cfg, w), cfg, w),
        refine_hf=lambda f, cfg: refined(f, family.refine_hf(f, cfg)),
        hf_names={**family.hf_names, **NAMES},
        arrange=lambda cfg, tensors: arrange(cfg, family.arrange(cfg, tensors)),
    )


MISTRAL = with_pixtral(llama.MISTRAL)
MINISTRAL3 = with_pixtral(ministral3.MINISTRAL3)
