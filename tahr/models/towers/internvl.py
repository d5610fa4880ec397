"""InternVL 3: a Qwen that reads tiles of images by a tower of its own, whose layers scale what they add; four patches
become a row."""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt

import numpy as np

from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import ChatVisionConfig, ImagePlace, ModelConfig
from tahr.models.decoder import Decoder
from tahr.models.encoders.layers import of_floats
from tahr.models.families import llama, qwen2, qwen3
from tahr.models.family import Family, Refine
from tahr.models.files.hf import activation
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.makers import Make
from tahr.models.parts.weights import Weights
from tahr.models.towers import clip
from tahr.models.towers.arranging import CLASS, PATCH, POSITIONS, arrange_tower, mismatch
from tahr.models.towers.llava import layers_run, with_places
from tahr.models.towers.projecting import with_projecting_tower
from tahr.models.towers.smolvlm import positions_by_square
from tahr.weights.tensor import HostTensor

VISION = {
    **clip.VISION,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 448,
    "patch_size": 14,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
}
NORMS = ("layer_norm", "rms_norm")
# Norms of queries and keys have this one, whatever a file says of the others.
ROW_NORM_EPS = 1e-6
MOST_MERGE = 8
PLACEHOLDER = 151667
WRITTEN = "<IMG_CONTEXT>"
AROUND = "<img><IMG_CONTEXT></img>"


def refine_qwen3(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(qwen2.windows(f, cfg), qkv_bias=False)


TEXT_MODELS: dict[str, Refine] = {"qwen2": qwen2.refine_hf, "qwen3": refine_qwen3}


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    kind = f.text("model_type")
    if kind not in TEXT_MODELS:
        raise UnsupportedModel(
            f"The text model of this InternVL is a {kind[:80]!r}; Tahr reads those with {' or '.join(TEXT_MODELS)}. "
            "Choose one of these."
        )
    cfg = TEXT_MODELS[kind](f, cfg)
    if not isinstance(f.get("vision_config"), Mapping):
        return cfg
    return replace(cfg, chat_vision=tower_config(f, cfg))


def tower_config(f: Fields, cfg: ModelConfig) -> ChatVisionConfig:
    part = f.part("vision_config")
    check_kind(f, part)
    tower = clip.vision_config(f, cfg.family, VISION, width_out=cfg.width, patch_bias=True)
    side = isqrt(tower.n_patches)
    merge = merged(f, side)
    layers = tower.layers
    n_layers = layers_run(replace(f, values={"vision_feature_layer": -1, **f.values}), layers.n_layers)
    if part.text("norm_type", "layer_norm") == "rms_norm":
        layers = replace(layers, norm_kind="rms", norm_bias=False)
    row_norms = part.flag("use_qk_norm")
    if row_norms and (layers.norm_kind != "rms" or layers.norm_eps != ROW_NORM_EPS):
        raise UnsupportedModel("The tower norms queries and keys otherwise than its rows, which Tahr does not do.")
    layers = replace(layers, qkv_bias=part.flag("attention_bias"), n_layers=n_layers, kinds=layers.kinds[:n_layers])
    return ChatVisionConfig(
        layers=layers,
        processor="GotOcr2",
        patch_size=tower.patch_size,
        merge=merge,
        n_positions=tower.n_positions,
        width_out=cfg.width,
        place=ImagePlace(
            f.count("image_token_id", cfg.n_vocab - 1, default=PLACEHOLDER, least=0),
            WRITTEN,
            AROUND,
            tiles="plain",
        ),
        side=side,
        activation=activation(replace(f, values={"projector_hidden_act": "gelu", **f.values}), "projector_hidden_act"),
        projector="joined",
        row_norms=row_norms,
    )


def check_kind(f: Fields, part: Fields) -> None:
    """Refuse towers that are put together in other ways."""
    kind = part.text("model_type", "internvl_vision")
    if kind != "internvl_vision":
        raise UnsupportedModel(f"The tower of this InternVL is a {kind[:80]!r}; Tahr reads its own alone.")
    strategy = f.text("vision_feature_select_strategy", "default")
    if strategy != "default":
        raise UnsupportedModel(
            f"This InternVL reads {strategy[:80]!r} of its tower; Tahr knows 'default', all patches."
        )
    norm = part.text("norm_type", "layer_norm")
    if norm not in NORMS:
        raise part.wrong("norm_type", " or ".join(NORMS))
    if not part.flag("use_mean_pooling", True):
        raise UnsupportedModel(
            "The tower of this InternVL ends with a norm (use_mean_pooling is false); Tahr has none."
        )
    if not part.flag("use_absolute_position_embeddings", True):
        raise UnsupportedModel("The tower of this InternVL has no positions; Tahr reads those that have.")


def merged(f: Fields, side: int) -> int:
    """Patches on a side of a square that becomes one row."""
    ratio = f.number("downsample_ratio", 0, 1, default=0.5)
    merge = round(1 / ratio)
    if not 1 < merge <= MOST_MERGE or merge * ratio != 1 or side % merge:
        raise f.wrong("downsample_ratio", f"one over a part of the {side} patches on a side of a tile")
    return merge


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    """Qwen 2 has biases on queries and keys, Qwen 3 norms."""
    return llama.build(cfg, w) if cfg.qkv_bias else qwen3.build(cfg, w)


# ---- tensors --------------------------------------------------------------------------------------------------------

TOWER = {
    "embeddings.cls_token": CLASS,
    "embeddings.position_embeddings": POSITIONS,
    "embeddings.patch_embeddings.projection": "vision.patch",
    "encoder.layer": "vision.layers",
}
PROJECTOR = {
    "layer_norm": "vision.projector.norm",
    "linear_1": "vision.projector.up",
    "linear_2": "vision.projector.down",
}
NAMES = {
    **with_places(TOWER, "vision_tower.", "model.vision_tower."),
    **with_places(PROJECTOR, "multi_modal_projector.", "model.multi_modal_projector."),
    "attention": "self_attn",
    "projection_layer": "o_proj",
    "layernorm_before": "input_layernorm",
    "layernorm_after": "post_attention_layernorm",
    "fc1": "up_proj",
    "fc2": "down_proj",
}
SCALED = {"lambda_1": "self_attn.o_proj", "lambda_2": "mlp.down_proj"}


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    """The tower's tensors, if the files have a tower; layers behind the one that is read are left alone."""
    vision = cfg.chat_vision
    if vision is None or PATCH not in tensors:
        return tensors
    read = {f"vision.layers.{i}" for i in range(vision.layers.n_layers)}
    for name in list(tensors):
        if name.startswith("vision.layers.") and ".".join(name.split(".")[:3]) not in read:
            tensors.drop(name)
    for name, n_axes in ((CLASS, 1), (POSITIONS, 2)):
        tensors.define(name, without_ones(tensors.take(name), n_axes))
    tensors.define(CLASS, without_bias(tensors.take(CLASS), tensors.make_of("vision.patch.bias")))
    arrange_tower(cfg, tensors)
    positions_by_square(tensors, vision)
    for i in range(vision.layers.n_layers):
        for scale, linear in SCALED.items():
            scale_rows(tensors, f"vision.layers.{i}.{scale}", f"vision.layers.{i}.{linear}")
    return tensors


def without_ones(stored: Make, n_axes: int) -> Make:
    """A tensor without the sizes of 1 that come first, which leaves so many."""

    def make() -> HostTensor:
        tensor = stored()
        shape = tensor.shape[-n_axes:]
        if tensor.shape != (1,) * (len(tensor.shape) - n_axes) + shape:
            raise mismatch(tensor, (1, *shape))
        return replace(tensor, shape=shape)

    return make


def without_bias(stored: Make, bias: Make) -> Make:
    """A class token without what it gets as all patches do: the matrix of these makes their bias of its zeros."""

    def make() -> HostTensor:
        token = stored()
        added = bias()
        if added.shape != token.shape:
            raise mismatch(added, token.shape)
        return of_floats(token.name, token.dense() - added.dense())

    return make


def scale_rows(tensors: Tensors, scale: str, linear: str) -> None:
    """Let a linear give out its numbers times a factor each."""
    factors = tensors.take(scale)
    for kind in ("weight", "bias"):
        tensors.define(f"{linear}.{kind}", scaled(tensors.take(f"{linear}.{kind}"), factors))


def scaled(stored: Make, factors: Make) -> Make:
    def make() -> HostTensor:
        tensor = stored()
        scale = factors()
        if scale.shape != tensor.shape[:1]:
            raise mismatch(scale, tensor.shape[:1])
        values = tensor.dense() * scale.dense().reshape(-1, *[1] * (len(tensor.shape) - 1))
        return of_floats(tensor.name, np.ascontiguousarray(values, np.float32))

    return make


INTERNVL = Family(
    "internvl",
    with_projecting_tower(build),
    qwen2.QWEN2.sampling,
    refine_hf=refine_hf,
    hf_names=NAMES,
    arrange=arrange,
)
