"""SigLIP and SigLIP 2: texts and images in both directions; a learned query looks at all patches of an image.

SigLIP 2 takes images of any proportions, whose positions are a small grid resized to each; checkpoints of one size are
plain SigLIP.
"""

from dataclasses import replace

import numpy as np

from tahr.errors import UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.encoders.layers import of_floats
from tahr.models.families.gpt import gpt2
from tahr.models.family import Family
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.makers import Make
from tahr.models.towers import clip
from tahr.models.towers.arranging import PATCH, POSITIONS, arrange_tower, mismatch
from tahr.models.towers.vit import seeing
from tahr.weights.tensor import HostTensor

ACTIVATION = {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
TEXT = {
    **clip.TEXT,
    **ACTIVATION,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
    "vocab_size": 32000,
}
VISION = {**clip.VISION, **ACTIVATION, "patch_size": 16}
HEAD = "vision.head.self_attn"
MAX_GRID = 64  # positions on a side


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return refined(f, cfg, "Siglip", VISION, resized=False)


def refine_siglip2(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """The grid is a square; images have no size of their own."""
    part = f.part("vision_config")
    n_positions = part.count("num_patches", MAX_GRID**2, default=256)
    side = round(n_positions**0.5)
    if side**2 != n_positions:
        raise part.wrong("num_patches", "the number of positions of a square grid")
    patch = part.count("patch_size", clip.MOST_SIDE, default=16)
    return refined(f, cfg, "Siglip2", {**VISION, "image_size": side * patch}, resized=True)


def refined(f: Fields, cfg: ModelConfig, processor: str, defaults: dict[str, object], resized: bool) -> ModelConfig:
    if not f.part("vision_config").flag("vision_use_head", True):
        raise UnsupportedModel("This SigLIP has a tower without a head, so it embeds no images; choose another.")
    width_out = f.count("projection_size", limits.MOST_WIDTH, default=cfg.width)
    cfg = clip.positioned(clip.both_ways(cfg))
    vision = clip.vision_config(
        f,
        cfg.family,
        defaults,
        has_class=False,
        processor=processor,
        width_out=width_out,
        head="probe",
        patch_bias=True,
        resized=resized,
        text_bias=True,
        n_padded=cfg.max_context,
    )
    if vision.layers.width != width_out:
        raise f.wrong("projection_size", f"{vision.layers.width}, the width of vectors of images")
    return replace(cfg, vision=vision, tied=True)


NAMES = {
    "vision_model.head.attention": HEAD,
    "vision_model.head.layernorm": "vision.head.norm",
    "text_model.head": "dense.0",
}


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    for name in ("logit_scale", "logit_bias"):
        tensors.drop(name)
    assert cfg.vision, "the configuration has no tower"
    split_probe(tensors, cfg.vision.layers.width)
    if not cfg.vision.resized:
        return arrange_tower(cfg, tensors)
    tensors.define(PATCH, with_positions(tensors.take(PATCH), tensors.take(POSITIONS)))
    return tensors


def split_probe(tensors: Tensors, width: int) -> None:
    """Queries, keys and values apart; the query of the probe is a bias, see `ProbeHead`."""
    matrix = tensors.take(f"{HEAD}.in_proj_weight")
    bias = tensors.take(f"{HEAD}.in_proj_bias")
    probe = tensors.take("vision.head.probe")

    def rows(i: int) -> Make:
        return lambda: third(matrix(), i, (3 * width, width))

    def biases(i: int) -> Make:
        return lambda: third(bias(), i, (3 * width,))

    def query() -> HostTensor:
        learned = probe()
        if learned.shape != (1, 1, width):
            raise mismatch(learned, (1, 1, width))
        values = rows(0)().dense() @ learned.dense().reshape(-1) + biases(0)().dense()
        return of_floats(learned.name, values)

    tensors.define(f"{HEAD}.q_proj.weight", lambda: nothing(matrix(), width))
    tensors.define(f"{HEAD}.q_proj.bias", query)
    for i, name in ((1, "k_proj"), (2, "v_proj")):
        tensors.define(f"{HEAD}.{name}.weight", rows(i))
        tensors.define(f"{HEAD}.{name}.bias", biases(i))


def third(tensor: HostTensor, i: int, shape: tuple[int, ...]) -> HostTensor:
    """A third of a tensor whose parts lie one below the other."""
    if tensor.shape != shape:
        raise mismatch(tensor, shape)
    n = shape[0] // 3
    return of_floats(tensor.name, tensor.dense()[i * n : (i + 1) * n])


def nothing(tensor: HostTensor, width: int) -> HostTensor:
    return of_floats(tensor.name, np.zeros((width, width), np.float32))


def with_positions(patch: Make, positions: Make) -> Make:
    """The matrix of patches, and beside it the table of positions, whose shares follow the pixels in a row."""

    def make() -> HostTensor:
        matrix = patch()
        table = positions()
        if len(matrix.shape) != 2 or len(table.shape) != 2 or matrix.shape[0] != table.shape[1]:
            raise mismatch(table, (0, matrix.shape[0]))
        return of_floats(matrix.name, np.concatenate([matrix.dense(), table.dense().T], axis=1))

    return make


SIGLIP = Family(
    "siglip",
    seeing(gpt2.build),
    refine_hf=refine_hf,
    hf_defaults=TEXT,
    hf_fields={"rms_norm_eps": "layer_norm_eps"},
    hf_names=clip.LAYER_NAMES | clip.TOWER_NAMES | clip.TEXT_NAMES | NAMES,
    arrange=arrange,
)
SIGLIP2 = replace(SIGLIP, name="siglip2", refine_hf=refine_siglip2)
