"""SmolVLM and Idefics3: a llama that reads tiles of images by SigLIP's tower, several patches as one row."""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt

import numpy as np

from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import ChatVisionConfig, ImagePlace, ModelConfig
from tahr.models.encoders.layers import of_floats
from tahr.models.families import llama
from tahr.models.family import Family
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.makers import Make
from tahr.models.towers import clip, siglip
from tahr.models.towers.arranging import PATCH, POSITIONS, arrange_tower, mismatch
from tahr.models.towers.llava import with_places
from tahr.models.towers.projecting import with_projecting_tower
from tahr.models.towers.qwen_vl import MOST_MERGE
from tahr.models.towers.rows import places_of
from tahr.weights.tensor import HostTensor

VISION = {
    **siglip.VISION,
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
}
PLACEHOLDER = 128257


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    kind = f.text("model_type")
    if kind not in ("llama", "smolvlm", "idefics3"):
        raise UnsupportedModel(
            f"The text model of this {cfg.family} is a {kind[:80]!r}; Tahr reads those with a llama: choose one."
        )
    if not isinstance(f.get("vision_config"), Mapping):
        return cfg
    tower = clip.vision_config(
        f,
        cfg.family,
        VISION,
        has_class=False,
        processor="Idefics3",
        width_out=cfg.width,
        patch_bias=True,
        head="probe",
    )
    side = isqrt(tower.n_patches)
    merge = f.count("scale_factor", MOST_MERGE, default=2)
    if side % merge:
        raise f.wrong("scale_factor", f"a part of the {side} patches on a side of a tile")
    vision = ChatVisionConfig(
        layers=tower.layers,
        processor=tower.processor,
        patch_size=tower.patch_size,
        merge=merge,
        n_positions=tower.n_positions,
        width_out=cfg.width,
        place=ImagePlace(f.count("image_token_id", cfg.n_vocab - 1, default=PLACEHOLDER, least=0), tiles="marked"),
        side=side,
        projector="square",
    )
    return replace(cfg, chat_vision=vision)


# ---- tensors --------------------------------------------------------------------------------------------------------

NAMES = {
    **clip.LAYER_NAMES,
    **with_places(clip.TOWER_NAMES, "", "model."),
    **with_places({"connector.modality_projection.proj": "vision.projector"}, "", "model."),
    "model.text_model": "model",
}


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    """The tower's tensors, if the files have a tower."""
    if cfg.chat_vision is None or PATCH not in tensors:
        return tensors
    positions_by_square(tensors, cfg.chat_vision)
    return arrange_tower(cfg, tensors)


def positions_by_square(tensors: Tensors, cfg: ChatVisionConfig) -> None:
    """Bring the table of positions into the order of patches."""
    tensors.define(POSITIONS, square_by_square(tensors.take(POSITIONS), cfg))


def square_by_square(stored: Make, cfg: ChatVisionConfig) -> Make:
    """The table of positions in the order of a tile's patches, of which those that become one row are neighbours. What
    stands behind them stays."""
    lines, columns = places_of(cfg.side, cfg.side, cfg.merge)

    def make() -> HostTensor:
        table = stored()
        if table.shape != (cfg.n_positions, cfg.layers.width):
            raise mismatch(table, (cfg.n_positions, cfg.layers.width))
        rows = table.dense()
        in_order = np.concatenate([rows[lines * cfg.side + columns], rows[cfg.side**2 :]])
        return of_floats(table.name, np.ascontiguousarray(in_order))

    return make


SMOLVLM = Family(
    "smolvlm",
    with_projecting_tower(llama.build),
    refine_hf=refine_hf,
    hf_defaults={"rms_norm_eps": 1e-5},
    hf_names=NAMES,
    arrange=arrange,
)
IDEFICS3 = replace(SMOLVLM, name="idefics3")
