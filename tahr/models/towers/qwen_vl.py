"""Qwen's vision models: Qwen3-VL, whose tower also feeds the first layers of the text model, and what is read alike in
others."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tahr.errors import UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import ChatVisionConfig, ImagePlace, ModelConfig
from tahr.models.config.rope import in_the_plane
from tahr.models.decoder import Decoder
from tahr.models.encoders.layers import of_floats
from tahr.models.families import qwen2, qwen3
from tahr.models.families.hybrid import qwen3_next
from tahr.models.families.phi3 import qkv_heights
from tahr.models.family import Family, Refine
from tahr.models.files.hf import common
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.makers import Make, turned
from tahr.models.parts.weights import Weights
from tahr.models.towers.arranging import PATCH, POSITIONS, mismatch
from tahr.models.towers.clip import MOST_SIDE, both_ways
from tahr.models.towers.joined import with_joining_tower
from tahr.models.towers.siglip import MAX_GRID, with_positions
from tahr.weights.tensor import HostTensor

MOST_MERGE = 8
MOST_RATIO = 64
THETA = 10000.0
TAPS = 2  # frames of a video that a patch is made of: an image is both of them
VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "num_position_embeddings": 2304,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": TAPS,
    "deepstack_visual_indexes": [8, 16, 24],
}
VISION_3_5 = {**VISION, "deepstack_visual_indexes": []}
COMMON = {"num_hidden_layers": "depth", "num_attention_heads": "num_heads"}  # names of what all transformers have

QWEN2 = {
    "depth": 32,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": TAPS,
}
NO_POSITIONS = {"num_position_embeddings": 0}  # rope alone says where a patch lies
VISION_2 = {**QWEN2, "embed_dim": 1280, "mlp_ratio": 4, "hidden_act": "quick_gelu"}
VISION_2_5 = {
    **QWEN2,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "hidden_act": "silu",
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return seeing(f, qwen3.QWEN3.refine_hf(f, cfg), VISION)


def refine_moe_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return seeing(f, qwen3.refine_moe_hf(f, cfg), VISION)


def refine_2_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """Its tower says how wide it is where others say how wide its rows are."""
    part = f.part("vision_config")
    width = part.count("embed_dim", limits.MOST_WIDTH, default=1280)
    ratio = part.count("mlp_ratio", MOST_RATIO, default=4)
    own = {
        "hidden_size": width,
        "intermediate_size": ratio * width,
        "out_hidden_size": part.get("hidden_size"),
        **NO_POSITIONS,
    }
    return seeing(f, qwen2.refine_hf(f, cfg), VISION_2, own)


def refine_2_5_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return seeing_windows(f, qwen2.refine_hf(f, cfg))


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """The tower that was found beside a GGUF, as `tahr.models.loader.projector` describes it."""
    sections = f.items("rope.dimension_sections")
    kind = f.values.get("projector_type")
    rope = {"mrope_section": sections[:3], "mrope_interleaved": kind == "qwen3vl_merger"}
    found = replace(f, values={**f.values, "rope_parameters": rope}, prefix="")
    if kind == "qwen2vl_merger":
        return seeing(found, cfg, VISION_2, NO_POSITIONS)
    if kind == "qwen2.5vl_merger":
        return seeing_windows(found, cfg)
    cfg = seeing(found, cfg, VISION_3_5)
    n_fed = f.count("n_deepstack_layers", limits.MOST_LAYERS, default=0, least=0)
    if cfg.chat_vision and len(cfg.chat_vision.deepstack) != n_fed:
        raise f.wrong("n_deepstack_layers", f"{len(cfg.chat_vision.deepstack)}, as many as the tower feeds")
    return cfg


def seeing_windows(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """`cfg` with a tower of RMS norms, gated MLPs, and windows of pixels in most layers."""
    cfg = seeing(f, cfg, VISION_2_5, NO_POSITIONS)
    if cfg.chat_vision is None:
        return cfg
    part = with_defaults(f.part("vision_config"), VISION_2_5, {})
    vision = cfg.chat_vision
    square = vision.patch_size * vision.merge
    layers = replace(vision.layers, norm_kind="rms", norm_bias=False)
    whole = layer_numbers(part, "fullatt_block_indexes", layers.n_layers)
    window = part.count("window_size", MOST_SIDE, least=square) // square
    return replace(cfg, chat_vision=replace(vision, layers=layers, gated=True, window=window, whole=whole))


def seeing(
    f: Fields, cfg: ModelConfig, defaults: Mapping[str, Any], own: Mapping[str, Any] | None = None
) -> ModelConfig:
    """`cfg` with the tower that a config.json describes, and a rope of three axes. `own` goes before what it says."""
    if not isinstance(f.get("vision_config"), Mapping):
        return cfg
    part = with_defaults(f.part("vision_config"), defaults, own or {})
    vision = tower_config(part, cfg, f.count("image_token_id", cfg.n_vocab - 1, least=0))
    if len(vision.deepstack) >= cfg.n_layers:
        raise part.wrong("deepstack_visual_indexes", f"a list of fewer layers than the text model's {cfg.n_layers}")
    axes = rope_axes(f, cfg)
    kinds = tuple(replace(kind, rope=replace(kind.rope, axes=axes)) for kind in cfg.kinds)
    return replace(cfg, chat_vision=vision, kinds=kinds)


def with_defaults(part: Fields, defaults: Mapping[str, Any], own: Mapping[str, Any]) -> Fields:
    """The tower's part of a config.json under the names of a model of texts."""
    known = {**defaults, **{name: value for name, value in part.values.items() if value is not None}, **own}
    named = {name: known.get(other) for name, other in COMMON.items()}
    return replace(part, values={"rms_norm_eps": 1e-6, **known, **named, "vocab_size": 1})


def tower_config(part: Fields, cfg: ModelConfig, placeholder: int) -> ChatVisionConfig:
    n_positions = part.count("num_position_embeddings", MAX_GRID**2, least=0)
    if round(n_positions**0.5) ** 2 != n_positions:
        raise part.wrong("num_position_embeddings", "the number of positions of a square grid")
    if part.count("out_hidden_size", limits.MOST_WIDTH, default=cfg.width) != cfg.width:
        raise part.wrong("out_hidden_size", f"{cfg.width}, the width of the text model")
    if part.count("temporal_patch_size", 4) != TAPS or part.count("in_channels", 4, default=3) != 3:
        raise UnsupportedModel("The model's patches are not of two frames of three colours; Tahr reads those alone.")
    layers = common(part, cfg.family)
    if layers.head_dim % 4:
        raise part.wrong("num_heads", "a number that gives heads of a multiple of 4 numbers")
    rope = in_the_plane(THETA, layers.head_dim)
    layers = replace(both_ways(layers), kinds=tuple(replace(kind, rope=rope) for kind in layers.kinds))
    return ChatVisionConfig(
        layers=layers,
        processor="Qwen2VL",
        patch_size=part.count("patch_size", MOST_SIDE),
        merge=part.count("spatial_merge_size", MOST_MERGE),
        n_positions=n_positions,
        width_out=cfg.width,
        place=ImagePlace(placeholder),
        deepstack=layer_numbers(part, "deepstack_visual_indexes", layers.n_layers),
    )


def layer_numbers(part: Fields, name: str, n_layers: int) -> tuple[int, ...]:
    """Some of the layers, in order."""
    found = part.items(name)
    known = range(n_layers)
    if any(i not in known for i in found) or found != sorted(set(found)):
        raise part.wrong(name, f"a rising list of layers below {n_layers}")
    return tuple(found)


def rope_axes(f: Fields, cfg: ModelConfig) -> tuple[int, ...]:
    """By pair, the axis that turns it: in blocks, or time, height and width in turns as far as each has a section."""
    n_pairs = cfg.kinds[0].rope.n_dims // 2
    places = [f.part("rope_parameters"), f.part("rope_scaling")]
    place = next((each for each in places if each.get("mrope_section") is not None), places[0])
    sections = place.items("mrope_section", 3)
    if not all(isinstance(n, int) and n >= 0 for n in sections) or sum(sections) != n_pairs:
        raise place.wrong("mrope_section", f"three numbers that make up the {n_pairs} pairs of a head")
    if not place.flag("mrope_interleaved"):
        return tuple(axis for axis, n in enumerate(sections) for _ in range(n))
    return tuple(i % 3 if i < 3 * sections[i % 3] else 0 for i in range(n_pairs))


SECOND_TAP = "vision.patch.second.weight"

# ---- tensors --------------------------------------------------------------------------------------------------------

NAMES = {
    "model.visual.patch_embed.proj": "vision.patch",
    "model.visual.pos_embed": "vision.positions",
    "model.visual.blocks": "vision.layers",
    "model.visual.merger": "vision.merger",
    "model.visual.deepstack_merger_list": "vision.deepstack",
    "visual.patch_embed.proj": "vision.patch",
    "visual.blocks": "vision.layers",
    "visual.merger": "vision.merger",
    "norm1": "input_layernorm",
    "norm2": "post_attention_layernorm",
    "attn.qkv": "self_attn.qkv_proj",
    "attn.proj": "self_attn.o_proj",
    "mlp.linear_fc1": "mlp.up_proj",
    "mlp.linear_fc2": "mlp.down_proj",
    "mlp.fc1": "mlp.up_proj",
    "mlp.fc2": "mlp.down_proj",
    "ln_q": "norm",
    "mlp.0": "up",
    "mlp.2": "down",
    "linear_fc1": "up",
    "linear_fc2": "down",
}


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    """The tower's tensors as `JoiningTower` wants them, if the files have a tower."""
    vision = cfg.chat_vision
    if vision is None or PATCH not in tensors:
        return tensors
    second = tensors.take(SECOND_TAP) if SECOND_TAP in tensors else None
    patch = both_taps(tensors.take(PATCH), second, vision)
    tensors.define(PATCH, with_positions(patch, tensors.take(POSITIONS)) if vision.n_positions else patch)
    tensors.split("self_attn.qkv_proj", qkv_heights(vision.layers), stem="vision")
    return tensors


STACKS = {name: f"{name}.weight" for name in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")}


def arrange_moe(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    """The experts of the text model too, whose matrices older checkpoints hold turned."""
    assert cfg.moe, "the text model has experts"
    width = cfg.moe.ffn_width
    shapes = {"mlp.experts.gate_up_proj": (2 * width, cfg.width), "mlp.experts.down_proj": (cfg.width, width)}
    for part, shape in shapes.items():
        for prefix, kind in tensors.found(part):
            name = f"{prefix}{part}.{kind}"
            tensors.define(name, upright(tensors.take(name), shape))
    tensors.split("mlp.experts.gate_up_proj", {"mlp.experts.gate_proj": width, "mlp.experts.up_proj": width})
    return arrange(cfg, tensors)


def upright(stored: Make, shape: tuple[int, int]) -> Make:
    """A stack of matrices of that shape, turned if they have another."""

    def make() -> HostTensor:
        tensor = stored()
        return tensor if tensor.shape[1:] == shape else turned(lambda: tensor)()

    return make


def both_taps(stored: Make, second: Make | None, cfg: ChatVisionConfig) -> Make:
    """The kernel of a convolution over two frames as a matrix for two equal ones. Checkpoints have one tensor [width,
    3, 2, patch, patch], GGUFs one of each frame."""
    frame = (cfg.layers.width, 3, cfg.patch_size, cfg.patch_size)

    def make() -> HostTensor:
        first = stored()
        if second is None:
            check_shape(first, (*frame[:2], TAPS, *frame[2:]))
            kernel = first.dense().sum(axis=2)
        else:
            other = second()
            check_shape(first, frame)
            check_shape(other, frame)
            kernel = first.dense() + other.dense()
        return of_floats(first.name, kernel.reshape(frame[0], -1))

    return make


def check_shape(tensor: HostTensor, wanted: tuple[int, ...]) -> None:
    if tensor.shape != wanted:
        raise mismatch(tensor, wanted)


def with_tower(build: Callable[[ModelConfig, Weights], Decoder]) -> Callable[[ModelConfig, Weights], Decoder]:
    """A family's `build`, and the tower of its files."""
    return lambda cfg, w: with_joining_tower(build(cfg, w), cfg, w)


QWEN3_VL = Family(
    "qwen3_vl",
    with_tower(qwen3.build),
    replace(qwen3.SAMPLING, temperature=0.7, top_p=0.8),
    refine_hf=refine_hf,
    refine_gguf=refine_gguf,
    hf_defaults={"head_dim": 128},
    hf_names=NAMES,
    arrange=arrange,
)
QWEN3_VL_MOE = replace(
    QWEN3_VL,
    name="qwen3_vl_moe",
    refine_hf=refine_moe_hf,
    refine_gguf=lambda f, cfg: refine_gguf(f, qwen3.refine_moe_gguf(f, cfg)),
    hf_defaults={**QWEN3_VL.hf_defaults, "norm_topk_prob": True},
    hf_names={**NAMES, **STACKS},
    arrange=arrange_moe,
)
QWEN2_VL = Family(
    "qwen2_vl",
    with_tower(qwen2.QWEN2.build),
    qwen2.QWEN2.sampling,
    refine_hf=refine_2_hf,
    refine_gguf=refine_gguf,
    hf_names=NAMES,
    arrange=arrange,
)
QWEN2_5_VL = replace(QWEN2_VL, name="qwen2_5_vl", refine_hf=refine_2_5_hf)


def refine_3_5_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return seeing(f, qwen3_next.refine_hf(f, cfg), VISION_3_5)


def refine_3_5_moe_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return seeing(f, qwen3_next.refine_moe_hf(f, cfg), VISION_3_5)


def arrange_3_5(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    return arrange(cfg, qwen3_next.arrange(cfg, tensors))


def with_sight(family: Family, refine: Refine) -> Family:
    """A hybrid of Qwen3.5 that reads images where its files have a tower."""
    refine_text = family.refine_gguf
    return replace(
        family,
        build=with_tower(family.build),
        refine_hf=refine,
        refine_gguf=lambda f, cfg: refine_gguf(f, refine_text(f, cfg)),
        hf_names={**family.hf_names, **NAMES},
        arrange=arrange_3_5,
    )


QWEN3_5 = with_sight(qwen3_next.QWEN3_5, refine_3_5_hf)
QWEN3_5_MOE = with_sight(qwen3_next.QWEN3_5_MOE, refine_3_5_moe_hf)
