"""Tiny random models that embed images and texts: configs, weights that any machine can make again, images."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

Config = dict[str, Any]
Arrays = dict[str, np.ndarray]
FIXTURES = Path(__file__).parents[1] / "fixtures" / "vision"
SHAPES = FIXTURES / "shapes.json"

LAYERS: Config = {"num_hidden_layers": 4, "num_attention_heads": 4, "layer_norm_eps": 1e-5}
TEXT: Config = {**LAYERS, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 96, "max_position_embeddings": 20}
VISION: Config = {**LAYERS, "hidden_size": 48, "intermediate_size": 80, "image_size": 40, "patch_size": 8}
CASES: dict[str, Config] = {
    # As OpenAI's and as LAION's: another activation, sizes that are no multiple of the patch, heads of 72 numbers.
    "clip": {
        "model_type": "clip", "architectures": ["CLIPModel"], "projection_dim": 24,
        "text_config": {**TEXT, "hidden_act": "quick_gelu", "eos_token_id": 2},
        "vision_config": {**VISION, "hidden_act": "quick_gelu"},
    },
    "clip_gelu": {
        "model_type": "clip", "architectures": ["CLIPModel"], "projection_dim": 40,
        "text_config": {**TEXT, "hidden_act": "gelu", "eos_token_id": 95},
        "vision_config": {**VISION, "hidden_act": "gelu", "image_size": 45, "patch_size": 14, "num_hidden_layers": 3,
                          "hidden_size": 144, "num_attention_heads": 2},
    },
    "chinese_clip": {
        "model_type": "chinese_clip", "architectures": ["ChineseCLIPModel"], "projection_dim": 24,
        "text_config": {**TEXT, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2, "pad_token_id": 0},
        "vision_config": {**VISION, "hidden_act": "quick_gelu"},
    },
    "siglip": {
        "model_type": "siglip", "architectures": ["SiglipModel"],
        "text_config": {**TEXT, "layer_norm_eps": 1e-6, "projection_size": 48, "pad_token_id": 1},
        "vision_config": {**VISION, "layer_norm_eps": 1e-6},
    },
    "siglip2": {
        "model_type": "siglip2", "architectures": ["Siglip2Model"],
        "text_config": {**TEXT, "layer_norm_eps": 1e-6, "projection_size": 48},
        "vision_config": {**LAYERS, "hidden_size": 48, "intermediate_size": 80, "patch_size": 8, "num_patches": 36,
                          "layer_norm_eps": 1e-6},
    },
}  # fmt: skip
SHAPES_OF_IMAGES = [(5, 5), (3, 7), (8, 4)]  # in patches, where they may differ: the grid is of 6 by 6
N_IMAGES = 3
MOST_PATCHES = 40


def shapes_of_images(case: str) -> list[tuple[int, int]]:
    """Height and width of each, in pixels."""
    vision = CASES[case]["vision_config"]
    if case == "siglip2":
        return [(high * vision["patch_size"], wide * vision["patch_size"]) for high, wide in SHAPES_OF_IMAGES]
    return [(vision["image_size"], vision["image_size"])] * N_IMAGES


def pixel_values(case: str) -> list[np.ndarray]:
    """Numbers of images, each [3, height, width]."""
    rng = np.random.RandomState(5)
    return [rng.standard_normal((3, *shape)).astype(np.float32) for shape in shapes_of_images(case)]


def texts(case: str) -> list[list[int]]:
    """Tokens, the last of which is the end of the text and the largest of all; some models read full texts alone."""
    most = TEXT["max_position_embeddings"] - 2
    lengths = (most, most) if case.startswith("siglip") else (1, 6, most)
    return [[94, *((i * i + 7 * i + n + i * k) % 90 for i in range(n)), 95] for k, n in enumerate(lengths)]


def shapes_of(case: str) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = json.loads(SHAPES.read_text())[case]
    return shapes


def make_weights(case: str) -> Arrays:
    """The same numbers on every machine: each tensor's values depend on its name and shape alone."""
    return {name: values(name, tuple(shape)) for name, shape in shapes_of(case).items()}


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    draws = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if "norm" in name and name.endswith("weight"):
        return (1 + draws * 0.2).astype(np.float32)
    n_in = int(np.prod(shape[1:])) if len(shape) > 1 else 100
    return np.asarray(draws * n_in**-0.5, np.float32)


# ---- as transformers takes them ---------------------------------------------------------------------------------


def image_inputs(case: str) -> list[Arrays]:
    """One image at a time; where patches come as rows, these are padded with zeros."""
    if case != "siglip2":
        return [{"pixel_values": values[None]} for values in pixel_values(case)]
    return [patch_inputs(values, CASES[case]["vision_config"]["patch_size"]) for values in pixel_values(case)]


def patch_inputs(values: np.ndarray, size: int) -> Arrays:
    high, wide = values.shape[1] // size, values.shape[2] // size
    rows = values.reshape(3, high, size, wide, size).transpose(1, 3, 2, 4, 0).reshape(high * wide, -1)
    padded = np.zeros((MOST_PATCHES, rows.shape[1]), np.float32)
    padded[: len(rows)] = rows
    mask = (np.arange(MOST_PATCHES) < len(rows)).astype(np.int64)
    return {
        "pixel_values": padded[None],
        "pixel_attention_mask": mask[None],
        "spatial_shapes": np.array([[high, wide]]),
    }


def text_inputs(case: str) -> list[Arrays]:
    """One text at a time, so that nothing is padded."""
    return [{"input_ids": np.array([text])} for text in texts(case)]
