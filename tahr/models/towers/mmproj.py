"""Towers of GGUF models, which stand in a file of their own that llama.cpp calls mmproj: read as a config.json and the
tensors of a checkpoint would say the same."""

import re
from collections.abc import Mapping
from typing import Any

from tahr.errors import CorruptFile, UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.weights.tensor import HostTensor

GEMMA3 = "gemma3"
# Kinds of towers, by the architecture of the text model.
KINDS = {
    "qwen2vl": ("qwen2vl_merger", "qwen2.5vl_merger"),
    "qwen3vl": ("qwen3vl_merger",),
    "qwen3vlmoe": ("qwen3vl_merger",),
    "qwen35": ("qwen3vl_merger",),
    "qwen35moe": ("qwen3vl_merger",),
    "gemma3": (GEMMA3,),
}
LAYER_NORMED = (GEMMA3, "qwen2vl_merger", "qwen3vl_merger")  # kinds whose norms have biases
PATCH_BIASED = (GEMMA3, "qwen3vl_merger")
NORM = re.compile(r"v\.(?:post_ln|blk\.\d{1,9}\.ln[12]|deepstack\.\d{1,9}\.norm)\.weight")
OF_LAYER = re.compile(r"v\.blk\.(\d{1,9})\.(.+)")
PLACEHOLDERS = {GEMMA3: "<image_soft_token>"}
PLACEHOLDER = "<|image_pad|>"  # where the kind has no other
SCALE = 4  # patches on a side of a square of Gemma 3's, where the file does not say
MERGE = 2  # patches on a side of a square, where the file does not say
WINDOW = 112  # pixels on a side of a window, where the file does not say
LEAST_TOKENS = 8  # an image has no fewer, as with llama.cpp
MOST_TOKENS = 4096
TOP = {
    "v.patch_embd.weight": "vision.patch.weight",
    "v.patch_embd.weight.1": "vision.patch.second.weight",
    "v.patch_embd.bias": "vision.patch.bias",
    "v.position_embd.weight": "vision.positions.weight",
}
FIXED = {
    "v.post_ln.weight": "vision.post_norm.weight",
    "v.post_ln.bias": "vision.post_norm.bias",
    "mm.soft_emb_norm.weight": "vision.mean_norm.weight",
    "mm.input_projection.weight": "vision.input_projection.weight",
}
MERGER = {"v.post_ln": "norm", "mm.0": "up", "mm.2": "down"}
DEEPSTACK = {"norm": "norm", "fc1": "up", "fc2": "down"}
LAYER = {
    "ln1": "input_layernorm",
    "ln2": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_out": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SWAPPED = {**LAYER, "ffn_up": LAYER["ffn_down"], "ffn_down": LAYER["ffn_up"]}


def check_kind(f: Fields, architecture: str) -> str:
    """The kind of a tower that belongs to text models of that architecture."""
    if f.text("general.architecture") != "clip" or not f.flag("clip.has_vision_encoder"):
        raise UnsupportedModel(f"In {f.where}, there is no tower that reads images: give the model's own mmproj file.")
    kind = f.text("clip.vision.projector_type") or f.text("clip.projector_type")
    if kind in KINDS.get(architecture, ()):
        return kind
    known = ", ".join(sorted({name for names in KINDS.values() for name in names}))
    raise UnsupportedModel(
        f"In {f.where}, the tower is of the kind {kind[:80]!r}, which does not belong to a text model of architecture "
        f"{architecture!r}. Tahr has {known}: give the model's own mmproj file."
    )


def as_config(f: Fields, kind: str, tensors: Mapping[str, HostTensor]) -> dict[str, Any]:
    """The fields that a config.json with the same tower has."""
    part = Fields(f.values, f.where, prefix="clip.vision.")
    check_whole(part, kind, tensors)
    if kind == GEMMA3:
        return fixed_config(f, part, tensors)
    width = part.count("embedding_length", limits.MOST_WIDTH)
    n_layers = part.count("block_count", limits.MOST_LAYERS)
    stacked = part.items("is_deepstack_layers", n_layers)
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        needed(tensors, name, n_axes=4)
    n_positions = 0
    if kind == "qwen3vl_merger":
        n_positions = needed(tensors, "v.position_embd.weight", n_axes=2).shape[0]
    vision = {
        "depth": n_layers,
        "hidden_size": width,
        "num_heads": part.get("attention.head_count"),
        "intermediate_size": mlp_width(tensors, width),
        "hidden_act": activation(f),
        "patch_size": part.get("patch_size"),
        "spatial_merge_size": part.count("spatial_merge_size", limits.MOST_WIDTH, default=MERGE),
        "num_position_embeddings": n_positions,
        "out_hidden_size": part.get("projection_dim"),
        "rms_norm_eps": part.get("attention.layer_norm_epsilon"),
        "deepstack_visual_indexes": [i for i, is_stacked in enumerate(stacked) if is_stacked],
        "window_size": part.count("window_size", limits.MOST_WIDTH, default=WINDOW),
        "fullatt_block_indexes": whole_layers(part, n_layers) if kind == "qwen2.5vl_merger" else [],
    }
    return {"vision_config": vision}


def fixed_config(f: Fields, part: Fields, tensors: Mapping[str, HostTensor]) -> dict[str, Any]:
    """Fields of a tower whose images have one size."""
    width = part.count("embedding_length", limits.MOST_WIDTH)
    image = part.count("image_size", limits.MOST_WIDTH)
    patch = part.count("patch_size", limits.MOST_WIDTH)
    scale = part.count("projector.scale_factor", limits.MOST_WIDTH, default=SCALE)
    if image // patch % scale:
        raise part.wrong("projector.scale_factor", f"a part of the {image // patch} patches on a side of an image")
    needed(tensors, "v.patch_embd.weight", n_axes=4)
    vision = {
        "hidden_size": width,
        "num_hidden_layers": part.count("block_count", limits.MOST_LAYERS),
        "num_attention_heads": part.get("attention.head_count"),
        "intermediate_size": mlp_width(tensors, width),
        "hidden_act": activation(f),
        "layer_norm_eps": part.get("attention.layer_norm_epsilon"),
        "image_size": image,
        "patch_size": patch,
    }
    return {"vision_config": vision, "mm_tokens_per_image": (image // patch // scale) ** 2}


def check_whole(part: Fields, kind: str, tensors: Mapping[str, HostTensor]) -> None:
    """Refuse towers without parts that other kinds do not have: without them a tower would see something else."""
    parts: dict[int, set[str]] = {}
    for found in filter(None, map(OF_LAYER.fullmatch, tensors)):
        parts.setdefault(int(found[1]), set()).add(found[2])
    if parts.keys() != set(range(part.count("block_count", limits.MOST_LAYERS))):
        raise part.wrong("block_count", f"the {len(parts)} layers of the file, from 0 on")
    usual = set[str]().union(*parts.values())
    names = [f"v.blk.{i}.{name}" for i in sorted(parts) for name in sorted(usual - parts[i])]
    if kind in LAYER_NORMED:
        names += [name.replace(".weight", ".bias") for name in tensors if NORM.fullmatch(name)]
    if kind in PATCH_BIASED:
        names.append("v.patch_embd.bias")
    for name in names:
        if name not in tensors:
            raise CorruptFile(f"The tower has no {name[:80]}; fetch the mmproj file again.")


def mlp_width(tensors: Mapping[str, HostTensor], width: int) -> int:
    """Numbers between the two matrices of an MLP: what files say of it is wrong for some."""
    up = needed(tensors, "v.blk.0.ffn_up.weight", n_axes=2)
    return next((n for n in up.shape if n != width), width)


def needed(tensors: Mapping[str, HostTensor], name: str, n_axes: int) -> HostTensor:
    tensor = tensors.get(name)
    if tensor is None or len(tensor.shape) != n_axes:
        raise CorruptFile(f"The tower has no usable {name}; fetch the mmproj file again.")
    return tensor


def activation(f: Fields) -> str:
    """The function between the matrices of an MLP."""
    if f.flag("clip.use_silu"):
        return "silu"
    return "gelu_pytorch_tanh" if f.flag("clip.use_gelu") else "quick_gelu"


def whole_layers(part: Fields, n_layers: int) -> list[Any]:
    """Layers without windows: named, or each so many."""
    named = part.items("wa_layer_indexes")
    if named:
        return named
    every = part.count("n_wa_pattern", limits.MOST_LAYERS)
    return list(range(every - 1, n_layers, every))


def as_preprocessor(f: Fields, vision: Mapping[str, Any]) -> dict[str, Any]:
    """The preprocessor_config.json of the same images."""
    part = Fields(f.values, f.where, prefix="clip.vision.")
    colours = {"image_mean": part.items("image_mean", 3), "image_std": part.items("image_std", 3)}
    if "image_size" in vision:
        size = {"height": vision["image_size"], "width": vision["image_size"]}
        return {"image_processor_type": "Gemma3ImageProcessor", "size": size, **colours}
    side = part.count("patch_size", limits.MOST_WIDTH) * vision["spatial_merge_size"]
    least = part.get("image_min_pixels")
    most = part.get("image_max_pixels")
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": part.get("patch_size"),
        "merge_size": vision["spatial_merge_size"],
        "min_pixels": LEAST_TOKENS * side**2 if least is None else least,
        "max_pixels": MOST_TOKENS * side**2 if most is None else most,
        **colours,
    }


def named_as_checkpoint(tensors: Mapping[str, HostTensor], vision: Mapping[str, Any]) -> dict[str, HostTensor]:
    """The tensors by canonical names; what the tower has no place for keeps its own."""
    up = tensors["v.blk.0.ffn_up.weight"]
    # Older converters took the one matrix for the other.
    layer = SWAPPED if up.shape == (vision["hidden_size"], vision["intermediate_size"]) != up.shape[::-1] else LAYER
    stacked = vision.get("deepstack_visual_indexes")
    return {tower_name(name, layer, stacked): tensor for name, tensor in tensors.items()}


def tower_name(name: str, layer_names: Mapping[str, str], stacked: list[int] | None) -> str:
    """The canonical name of a tensor; a tower of images of one size feeds no layers of the text model."""
    top = TOP | FIXED if stacked is None else TOP
    if name in top:
        return top[name]
    stem, _, kind = name.rpartition(".")
    if stacked is not None and stem in MERGER:
        return f"vision.merger.{MERGER[stem]}.{kind}"
    found = re.fullmatch(r"v\.(blk|deepstack)\.(\d{1,4})\.(\w+)", stem)
    if found is None:
        return name
    layer = int(found[2])
    if found[1] == "blk" and found[3] in layer_names:
        return f"vision.layers.{layer}.{layer_names[found[3]]}.{kind}"
    if found[1] == "deepstack" and stacked and layer in stacked and found[3] in DEEPSTACK:
        return f"vision.deepstack.{stacked.index(layer)}.{DEEPSTACK[found[3]]}.{kind}"
    return name
