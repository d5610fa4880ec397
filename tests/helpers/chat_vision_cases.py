"""Tiny random models that chat about images: configs, weights that any machine can make again, images and prompts."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from vision_cases import Arrays, Config, values

FIXTURES = Path(__file__).parents[1] / "fixtures" / "chat_vision"
SHAPES = FIXTURES / "shapes.json"
N_GREEDY = 16

IDS: Config = {"image_token_id": 90, "video_token_id": 93, "vision_start_token_id": 91, "vision_end_token_id": 92}
IMAGE, START, END = 90, 91, 92
BANNED = tuple(sorted(IDS.values()))  # transformers takes what a model writes for an image's place
TEXT: Config = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "vocab_size": 96,
    "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
    "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
ROPE: Config = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
BLOCKS: Config = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
PARTIAL: Config = {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
VISION: Config = {
    "depth": 5, "hidden_size": 48, "num_heads": 4, "intermediate_size": 80, "patch_size": 4, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "in_channels": 3, "hidden_act": "gelu_pytorch_tanh", "out_hidden_size": 32,
    "num_position_embeddings": 36,
}  # fmt: skip
CASES: dict[str, Config] = {
    # Three layers of the tower feed the first layers of the text model; three axes of rope take turns.
    "qwen3_vl": {
        "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], **IDS,
        "tie_word_embeddings": False,
        "text_config": {**TEXT, "model_type": "qwen3_vl_text", "rope_parameters": ROPE},
        "vision_config": {**VISION, "model_type": "qwen3_vl_vision", "deepstack_visual_indexes": [0, 1, 3]},
    },
    # Layer norms and quick_gelu; rope in blocks; the text model stands beside the tower.
    "qwen2_vl": {
        "model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"], **IDS,
        "tie_word_embeddings": False,
        "text_config": {**TEXT, "model_type": "qwen2_vl_text", "head_dim": 8, "rope_parameters": BLOCKS},
        "vision_config": {**VISION, "model_type": "qwen2_vl_vision", "embed_dim": 48, "hidden_size": 32, "mlp_ratio": 2,
                          "hidden_act": "quick_gelu"},
    },
    # Windows of four by four patches, of which images have whole and smaller ones, in all layers but two.
    "qwen2_5_vl": {
        "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"], **IDS,
        "tie_word_embeddings": False,
        "text_config": {**TEXT, "model_type": "qwen2_5_vl_text", "head_dim": 8, "rope_parameters": BLOCKS},
        "vision_config": {**VISION, "model_type": "qwen2_5_vl_vision", "hidden_act": "silu", "window_size": 16,
                          "fullatt_block_indexes": [1, 3]},
    },
    # Every fourth layer attends, with a rope of three axes in half of a head; the others keep states.
    "qwen3_5": {
        "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], **IDS,
        "tie_word_embeddings": False,
        "text_config": {
            **TEXT, "model_type": "qwen3_5_text", "rope_parameters": {**ROPE, **PARTIAL},
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
            "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
            "layer_types": [*["linear_attention"] * 3, "full_attention", "linear_attention"],
        },
        "vision_config": {**VISION, "model_type": "qwen3_5_vision"},
    },
}  # fmt: skip
GRIDS = [(4, 6), (8, 4), (2, 2)]  # height and width of each image, in patches

Part = int | list[int]  # the number of an image, or tokens
PROMPTS: dict[str, list[Part]] = {
    "none": [[(7 * i + 3) % 88 for i in range(21)]],
    "first": [0, [(5 * i + 1) % 88 for i in range(9)]],
    "last": [[(11 * i + 2) % 88 for i in range(8)], 1],
    "between": [[4, 8, 15], 2, [16, 23, 42, 4]],
    "three": [0, [9], 1, 2, [(3 * i + 5) % 88 for i in range(7)], 0, [44, 45]],
}


def pixels(case: str) -> list[np.ndarray]:
    """Numbers of images, each [3, height, width]."""
    rng = np.random.RandomState(5)
    size = CASES[case]["vision_config"]["patch_size"]
    return [rng.standard_normal((3, high * size, wide * size)).astype(np.float32) for high, wide in GRIDS]


def tokens(case: str, name: str) -> tuple[list[int], list[int]]:
    """A prompt with a placeholder for each row, and the images in it."""
    merge = CASES[case]["vision_config"]["spatial_merge_size"]
    made: list[int] = []
    images: list[int] = []
    for part in PROMPTS[name]:
        if isinstance(part, list):
            made += part
            continue
        high, wide = GRIDS[part]
        made += [START, *[IMAGE] * (high * wide // merge**2), END]
        images.append(part)
    return made, images


def template_tokens(name: str) -> tuple[list[int], list[int]]:
    """The same with one placeholder for each image, as a chat template writes it."""
    parts = PROMPTS[name]
    made = [token for part in parts for token in (part if isinstance(part, list) else [START, IMAGE, END])]
    return made, [part for part in parts if isinstance(part, int)]


def shapes_of(case: str) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = json.loads(SHAPES.read_text())[case]
    return shapes


def make_weights(case: str) -> Arrays:
    """The same numbers on every machine: each tensor's values depend on its name and shape alone."""
    made = {name: values(name, tuple(shape)) for name, shape in shapes_of(case).items()}
    if case == "qwen3_5":  # its text model stores the gains of norms less one
        own = [name for name in made if "language_model" in name and name.endswith("norm.weight")]
        made |= {name: made[name] - 1 for name in own if "linear_attn" not in name}
    return made


def expected(case: str) -> dict[str, Any]:
    return dict(np.load(FIXTURES / f"{case}.npz"))
