"""Gemma 3: squares of the patches of SigLIP's tower become one row each; the tokens of an image see all of it."""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt

import numpy as np

from tahr.models.config.fields import Fields
from tahr.models.config.record import ChatVisionConfig, ImagePlace, ModelConfig
from tahr.models.encoders.layers import of_floats
from tahr.models.families import gemma3
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.makers import Make, turned
from tahr.models.towers import clip, siglip
from tahr.models.towers.arranging import PATCH, arrange_tower
from tahr.models.towers.llava import placeholder_of, with_places
from tahr.models.towers.projecting import with_projecting_tower
from tahr.models.towers.smolvlm import positions_by_square
from tahr.weights.tensor import HostTensor

VISION = {
    **siglip.VISION,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 896,
    "patch_size": 14,
}
MOST_ROWS = 1 << 12
PLACEHOLDER = 262144
WRITTEN = "<start_of_image>"
AROUND = "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return seeing(f, gemma3.refine_hf(f, cfg))


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """The tower that was found beside a GGUF, as `tahr.models.loader.projector` describes it."""
    return seeing(replace(f, prefix=""), gemma3.refine_gguf(f, cfg))


def seeing(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """`cfg` with the tower that a config.json describes."""
    if not isinstance(f.get("vision_config"), Mapping):
        return cfg
    tower = clip.vision_config(
        f,
        cfg.family,
        VISION,
        has_class=False,
        processor="Gemma3",
        width_out=cfg.width,
        patch_bias=True,
        head="probe",
    )
    side = isqrt(tower.n_patches)
    n_rows = f.count("mm_tokens_per_image", MOST_ROWS, default=256)
    if isqrt(n_rows) ** 2 != n_rows or side % isqrt(n_rows):
        raise f.wrong("mm_tokens_per_image", f"the square of a part of the {side} patches on a side of an image")
    if any(0 < kind.window < n_rows for kind in cfg.kinds):
        raise f.wrong("mm_tokens_per_image", "no more than the window of a layer, which an image must not leave")
    vision = ChatVisionConfig(
        layers=tower.layers,
        processor=tower.processor,
        patch_size=tower.patch_size,
        merge=side // isqrt(n_rows),
        n_positions=tower.n_positions,
        width_out=cfg.width,
        place=ImagePlace(placeholder_of(f, cfg, PLACEHOLDER), WRITTEN, AROUND, both_ways=True),
        side=side,
        projector="mean",
    )
    return replace(cfg, chat_vision=vision)


# ---- tensors --------------------------------------------------------------------------------------------------------

LESS_ONE = "vision.mean_norm_less_one.weight"  # checkpoints hold gains minus one, GGUFs the gains
MATRIX = "vision.input_projection.weight"  # [width of the tower, width of the text model]
PROJECTOR = {
    "multi_modal_projector.mm_soft_emb_norm": "vision.mean_norm_less_one",
    "multi_modal_projector.mm_input_projection_weight": MATRIX,
}
NAMES = {
    **clip.LAYER_NAMES,
    **with_places(clip.TOWER_NAMES, "vision_tower.", "model.vision_tower."),
    **with_places(
        {name.removeprefix("vision_model."): canonical for name, canonical in clip.TOWER_NAMES.items()},
        "vision_tower.",
        "model.vision_tower.",
    ),
    **with_places(PROJECTOR, "", "model."),
}


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    """The tower's tensors, if the files have a tower."""
    if cfg.chat_vision is None or PATCH not in tensors:
        return tensors
    positions_by_square(tensors, cfg.chat_vision)
    tensors.define("vision.projector.weight", turned(tensors.take(MATRIX)))
    if LESS_ONE in tensors:
        tensors.define("vision.mean_norm.weight", one_more(tensors.take(LESS_ONE)))
    return arrange_tower(cfg, tensors)


def one_more(stored: Make) -> Make:
    def make() -> HostTensor:
        gains = stored()
        return of_floats(gains.name, gains.dense() + np.float32(1))

    return make


GEMMA3 = replace(
    gemma3.GEMMA3,
    build=with_projecting_tower(gemma3.build),
    refine_hf=refine_hf,
    refine_gguf=refine_gguf,
    hf_names=NAMES,
    arrange=arrange,
)
