"""GGUFs of tiny models that chat about images: a text model, and its tower as llama.cpp's converter writes it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from chat_vision_cases import CASES, FIXTURES, IMAGE, QWEN, make_weights
from gguf_maker import Gguf, Stored, Typed
from model_files import to_gguf_parts
from vision_cases import Arrays

RECORDED = FIXTURES / "mmproj.json"
LAYER = {
    "norm1": "ln1", "norm2": "ln2", "attn.proj": "attn_out", "mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "attn.qkv": "attn_qkv",
}  # fmt: skip
TOP = {
    "merger.norm": "v.post_ln", "merger.ln_q": "v.post_ln", "merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2",
    "merger.mlp.0": "mm.0", "merger.mlp.2": "mm.2", "pos_embed": "v.position_embd", "patch_embed.proj": "v.patch_embd",
}  # fmt: skip
FIXED = {
    "vision_model.embeddings.patch_embedding": "v.patch_embd", "vision_model.post_layernorm": "v.post_ln",
    "vision_model.embeddings.position_embedding": "v.position_embd", "mm_soft_emb_norm": "mm.soft_emb_norm",
    "layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_out", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}  # fmt: skip
IN_FILES = [*QWEN, "gemma3"]  # cases whose towers llama.cpp's converter writes
PLACEHOLDERS = {"gemma3": "<image_soft_token>"}
DEEPSTACK = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}


def recorded(case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())[case]
    return found


def tower_tensors(case: str) -> Arrays:
    """As the converter names, cuts and orders them."""
    if case == "gemma3":
        return fixed_tensors(case)
    found: Arrays = {}
    fed = CASES[case]["vision_config"].get("deepstack_visual_indexes")
    for name, values in make_weights(case).items():
        stem, _, kind = name.partition("visual.")[2].rpartition(".")
        parts = stem.split(".")
        if stem == "patch_embed.proj" and kind == "weight":
            found |= {"v.patch_embd.weight": values[:, :, 0], "v.patch_embd.weight.1": values[:, :, 1]}
        elif stem in TOP:
            found[f"{TOP[stem]}.{kind}"] = values
        elif parts[0] == "deepstack_merger_list":
            found[f"v.deepstack.{fed[int(parts[1])]}.{DEEPSTACK[parts[2]]}.{kind}"] = values
        elif parts[0] == "blocks":
            part = ".".join(parts[2:])
            if part == "attn.qkv" and case in ("qwen2_vl", "qwen2_5_vl"):
                found |= {
                    f"v.blk.{parts[1]}.attn_{s}.{kind}": v for s, v in zip("qkv", np.split(values, 3), strict=True)
                }
            else:
                found[f"v.blk.{parts[1]}.{LAYER[part]}.{kind}"] = values
    return {name: np.ascontiguousarray(values) for name, values in found.items()}


def fixed_tensors(case: str) -> Arrays:
    """Those of a tower whose images have one size."""
    found: Arrays = {}
    for name, values in make_weights(case).items():
        whole = name.removeprefix("vision_tower.").removeprefix("multi_modal_projector.")
        stem, _, kind = whole.rpartition(".")
        if whole == "mm_input_projection_weight":
            found["mm.input_projection.weight"] = values.astype(np.float16)
        elif parts := re.fullmatch(r"vision_model\.encoder\.layers\.(\d+)\.(.*)", stem):
            found[f"v.blk.{parts[1]}.{FIXED[parts[2]]}.{kind}"] = values
        elif stem in FIXED:
            found[f"{FIXED[stem]}.{kind}"] = values + (stem == "mm_soft_emb_norm")
    return {name: np.ascontiguousarray(values) for name, values in found.items()}


def tower_metadata(case: str) -> dict[str, Typed]:
    """What the converter says, and the window of the tiny tower, which is smaller than that of all released ones."""
    found = {"general.architecture": Typed("str", "clip")}
    for key, value in recorded(case)["metadata"].items():
        found[key] = typed(value)
    if window := CASES[case]["vision_config"].get("window_size"):
        found["clip.vision.window_size"] = Typed("u32", window)
    return found


def typed(value: Any) -> Typed:
    if isinstance(value, list):
        return Typed(f"[{typed(value[0]).kind}]", value)
    kinds = {bool: "bool", int: "u32", float: "f32", str: "str"}
    return Typed(kinds[type(value)], value)


def write_tower(path: Path, case: str, metadata: dict[str, Typed] | None = None, tensors: Arrays | None = None) -> Path:
    arrays = tower_tensors(case) if tensors is None else tensors
    stored = [Stored(n, a.shape[::-1], int(a.dtype == np.float16), a.tobytes()) for n, a in arrays.items()]
    path.write_bytes(Gguf(metadata or tower_metadata(case), stored).to_bytes())
    return path


def write_text_model(path: Path, case: str, **keys: Typed) -> Path:
    """The text model alone, with the names of its tokens."""
    text = CASES[case]["text_config"]
    names = {"model.language_model.": "model.", "language_model.": ""}
    towers = ("model.visual.", "visual.", "vision_tower.", "multi_modal_projector.")
    arrays: Arrays = {}
    for name, values in make_weights(case).items():
        prefix = next((each for each in names if name.startswith(each)), "")
        if not name.startswith(towers):
            arrays[names.get(prefix, "") + name.removeprefix(prefix)] = values
    metadata, tensors = to_gguf_parts(text, arrays)
    prefix = metadata["general.architecture"].value
    tokens = [f"t{i}" for i in range(text["vocab_size"])]
    tokens[IMAGE] = PLACEHOLDERS.get(case, "<|image_pad|>")
    metadata["tokenizer.ggml.tokens"] = Typed("[str]", tokens)
    if sections := text.get("rope_parameters", {}).get("mrope_section"):
        metadata[f"{prefix}.rope.dimension_sections"] = Typed("[u32]", [*sections, 0])
    if fed := CASES[case]["vision_config"].get("deepstack_visual_indexes"):
        metadata[f"{prefix}.n_deepstack_layers"] = Typed("u32", len(fed))
    path.write_bytes(Gguf(metadata | keys, tensors).to_bytes())
    return path
