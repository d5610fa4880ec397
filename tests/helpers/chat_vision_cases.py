"""Tiny random models that chat about images: configs, weights that any machine can make again, images and prompts."""

import json
import re
from math import isqrt
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
TILED: Config = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 24,
    "patch_size": 4,
}  # fmt: skip
CASES: dict[str, Config] = {
    # Three layers of the tower feed the first layers of the text model; three axes of rope take turns.
    "qwen3_vl": {
        "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], **IDS,
        "tie_word_embeddings": False,
        "text_config": {**TEXT, "model_type": "qwen3_vl_text", "rope_parameters": ROPE},
        "vision_config": {**VISION, "model_type": "qwen3_vl_vision", "deepstack_visual_indexes": [0, 1, 3]},
    },
    # The same with experts in the text model.
    "qwen3_vl_moe": {
        "model_type": "qwen3_vl_moe", "architectures": ["Qwen3VLMoeForConditionalGeneration"], **IDS,
        "tie_word_embeddings": False,
        "text_config": {
            **TEXT, "model_type": "qwen3_vl_moe_text", "rope_parameters": ROPE, "num_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True,
        },
        "vision_config": {
            **VISION, "model_type": "qwen3_vl_moe_vision", "depth": 3, "deepstack_visual_indexes": [0, 2],
        },
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
    # A class token; states before the last of four layers; images of one size, which nothing stands around.
    "llava": {
        "model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 90,
        "tie_word_embeddings": False, "image_seq_length": 9, "projector_hidden_act": "gelu",
        "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
        "text_config": {**TEXT, "model_type": "llama", "head_dim": 8},
        "vision_config": {
            "model_type": "clip_vision_model", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4,
            "num_attention_heads": 4, "image_size": 12, "patch_size": 4, "hidden_act": "quick_gelu",
        },
    },
    # All of an image, then its tiles line by line, a learned row behind each; what is beside the image is left out.
    "llava_next": {
        "model_type": "llava_next", "architectures": ["LlavaNextForConditionalGeneration"], "image_token_index": 90,
        "tie_word_embeddings": False, "image_seq_length": 9, "projector_hidden_act": "gelu",
        "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
        "image_grid_pinpoints": [[12, 24], [24, 12], [24, 24], [36, 12], [12, 36], [12, 12]],
        "text_config": {**TEXT, "model_type": "mistral", "head_dim": 8, "sliding_window": None},
        "vision_config": {
            "model_type": "clip_vision_model", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
            "num_attention_heads": 4, "image_size": 12, "patch_size": 4, "hidden_act": "quick_gelu",
        },
    },
    # Images in tiles, each of which is told where it lies; nine patches become a row.
    "smolvlm": {
        "model_type": "smolvlm", "architectures": ["SmolVLMForConditionalGeneration"], "image_token_id": 90,
        "tie_word_embeddings": False, "scale_factor": 3,
        "text_config": {**TEXT, "model_type": "llama", "head_dim": 8},
        "vision_config": {**TILED, "model_type": "smolvlm_vision"},
    },
    # The same under another name, with tied embeddings, four patches a row and pixels beside the last patch.
    "idefics3": {
        "model_type": "idefics3", "architectures": ["Idefics3ForConditionalGeneration"], "image_token_id": 90,
        "tie_word_embeddings": True, "scale_factor": 2,
        "text_config": {**TEXT, "model_type": "llama", "tie_word_embeddings": True},
        "vision_config": {**TILED, "model_type": "idefics3_vision", "image_size": 18},
    },
    # Tiles without marks; layers that scale what they add; four patches become a row, without the class token.
    "internvl": {
        "model_type": "internvl", "architectures": ["InternVLForConditionalGeneration"], "image_token_id": 90,
        "tie_word_embeddings": False, "image_seq_length": 4, "downsample_ratio": 0.5, "projector_hidden_act": "gelu",
        "vision_feature_layer": -1, "vision_feature_select_strategy": "default",
        "text_config": {**TEXT, "model_type": "qwen2", "head_dim": 8},
        "vision_config": {**TILED, "model_type": "internvl_vision", "image_size": 16, "attention_bias": True},
    },
    # The same with the norms of its largest tower, and a text model without biases.
    "internvl_qwen3": {
        "model_type": "internvl", "architectures": ["InternVLForConditionalGeneration"], "image_token_id": 90,
        "tie_word_embeddings": True, "image_seq_length": 4, "downsample_ratio": 0.5, "projector_hidden_act": "gelu",
        "vision_feature_layer": -1, "vision_feature_select_strategy": "default",
        "text_config": {**TEXT, "model_type": "qwen3", "tie_word_embeddings": True},
        "vision_config": {
            **TILED, "model_type": "internvl_vision", "image_size": 16, "norm_type": "rms_norm", "use_qk_norm": True,
        },
    },
    # The mean of four patches becomes a row; tokens of an image see each other, in layers with a window too.
    "gemma3": {
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "image_token_index": 90,
        "boi_token_index": 91, "eoi_token_index": 92, "mm_tokens_per_image": 9, "tie_word_embeddings": True,
        "text_config": {
            **TEXT, "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 10,
            "layer_types": [*["sliding_attention"] * 2, "full_attention", *["sliding_attention"] * 2],
            "query_pre_attn_scalar": 24, "tie_word_embeddings": True, "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        "vision_config": {**TILED, "model_type": "siglip_vision_model", "vision_use_head": False},
    },
    # Lines of an image end with tokens of their own; squares of patches are joined number by number.
    "mistral3": {
        "model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 90,
        "tie_word_embeddings": False, "spatial_merge_size": 2, "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu", "vision_feature_layer": -1,
        "text_config": {**TEXT, "model_type": "mistral", "head_dim": 16, "sliding_window": None, "rms_norm_eps": 1e-3},
        "vision_config": {
            "model_type": "pixtral", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
            "num_attention_heads": 4, "head_dim": 12, "image_size": 64, "patch_size": 4, "hidden_act": "silu",
            "rope_theta": 10000.0,
        },
    },
    # The same tower without squares, in what says it is a LLaVA.
    "pixtral": {
        "model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 90,
        "tie_word_embeddings": False, "image_seq_length": 1, "projector_hidden_act": "gelu",
        "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
        "text_config": {**TEXT, "model_type": "mistral", "head_dim": 8, "sliding_window": None},
        "vision_config": {
            "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "head_dim": 8, "image_size": 64, "patch_size": 4, "hidden_act": "gelu",
            "rope_theta": 1000.0,
        },
    },
}  # fmt: skip
GRIDS = [(4, 6), (8, 4), (2, 2)]  # height and width of each image, in patches, where they may differ
TILES = [(1, 2), (1, 1), (2, 1)]  # rows and columns of tiles of each image, where they are split
QWEN = [case for case in CASES if case.startswith("qwen")]
IN_LINES = ["mistral3", "pixtral"]  # those whose lines end with tokens
IN_TILES = ["smolvlm", "idefics3"]
WITHOUT_MARKS = ["internvl", "internvl_qwen3"]  # those whose tiles stand between the two marks of an image
SPLIT = [*IN_TILES, *WITHOUT_MARKS, "llava_next"]  # those whose images become several
SIZES = [(4, 24), (12, 12), (24, 4)]  # height and width of images that are split, before they are brought to tiles
MARKED = [*QWEN, *WITHOUT_MARKS, "gemma3"]  # those whose placeholders stand between two marks
MARKS = {
    "[IMG_BREAK]": START, "[IMG_END]": END,
    "<fake_token_around_image>": 91, "<global-img>": 92, "<row_1_col_1>": 93, "<row_1_col_2>": 94, "<row_2_col_1>": 95,
    "\n\n": 5, "\n": 4, "<image>": IMAGE,
}  # fmt: skip

Part = int | list[int]  # the number of an image, or tokens
PROMPTS: dict[str, list[Part]] = {
    "none": [[(7 * i + 3) % 88 for i in range(21)]],
    "first": [0, [(5 * i + 1) % 88 for i in range(9)]],
    "last": [[(11 * i + 2) % 88 for i in range(8)], 1],
    "between": [[4, 8, 15], 2, [16, 23, 42, 4]],
    "three": [0, [9], 1, 2, [(3 * i + 5) % 88 for i in range(7)], 0, [44, 45]],
}


def merge_of(case: str) -> int:
    """Patches on a side of a square that becomes one row."""
    config = CASES[case]
    if rows := config.get("mm_tokens_per_image"):
        return side_of(case) // isqrt(rows)
    if ratio := config.get("downsample_ratio"):
        return round(1 / ratio)
    n: int = (
        config.get("scale_factor")
        or config.get("spatial_merge_size")
        or config["vision_config"].get("spatial_merge_size", 1)
    )
    return n


def side_of(case: str) -> int:
    """Patches on a side of an image or a tile, where all have one size."""
    vision = CASES[case]["vision_config"]
    side: int = vision["image_size"] // vision["patch_size"]
    return side


def n_tiles(case: str, image: int) -> int:
    """Tiles of an image that is split, with the whole of it."""
    n_high, n_wide = TILES[image]
    return n_high * n_wide + (n_high * n_wide > 1 or case == "llava_next")


def grids(case: str) -> list[tuple[int, int]]:
    """Height and width of each image, in patches; its tiles lie below each other."""
    if case == "pixtral":
        return [(2, 4), (4, 2), (1, 3)]
    if case == "mistral3":
        return [*GRIDS[:2], (2, 4)]  # transformers cannot read images of one row
    if case in QWEN:
        return GRIDS
    side = side_of(case)
    if case not in SPLIT:
        return [(side, side)] * len(GRIDS)
    return [(n_tiles(case, i) * side, side) for i in range(len(TILES))]


def pixels(case: str) -> list[np.ndarray]:
    """Numbers of images, each [3, height, width]."""
    rng = np.random.RandomState(5)
    size = CASES[case]["vision_config"]["patch_size"]
    return [rng.standard_normal((3, high * size, wide * size)).astype(np.float32) for high, wide in grids(case)]


def tile_text(image: int, n_rows: int) -> str:
    """What transformers' processor writes for an image in tiles."""
    rows = "<image>" * n_rows
    n_high, n_wide = TILES[image]
    whole = f"<fake_token_around_image><global-img>{rows}<fake_token_around_image>"
    if (n_high, n_wide) == (1, 1):
        return whole
    text = ""
    for line in range(1, n_high + 1):
        for column in range(1, n_wide + 1):
            text += f"<fake_token_around_image><row_{line}_col_{column}>{rows}"
        text += "\n"
    return f"{text}\n{whole}"


def mark_tokens(text: str) -> list[int]:
    """The tokens of a text of marks, of which two ends of lines are one."""
    return [MARKS[found] for found in re.findall("|".join(map(re.escape, MARKS)), text)]


def image_tokens(case: str, image: int) -> list[int]:
    """A placeholder for each row of an image, and what the family puts around them."""
    high, wide = grids(case)[image]
    n_rows = high * wide // merge_of(case) ** 2
    if case in IN_LINES:
        line = [IMAGE] * (wide // merge_of(case))
        return [*[*line, START] * (high // merge_of(case) - 1), *line, END]
    if case in IN_TILES:
        return mark_tokens(tile_text(image, n_rows // n_tiles(case, image)))
    if case == "llava_next":  # lines of two tiles, of one, and columns of two; half of a wide image is beside it
        return [IMAGE] * (9 + [1 * 7, 3 * 4, 6 * 2][image])
    return [START, *[IMAGE] * n_rows, END] if case in MARKED else [IMAGE] * n_rows


def tokens(case: str, name: str) -> tuple[list[int], list[int]]:
    """A prompt with a placeholder for each row, and the images in it."""
    made: list[int] = []
    images: list[int] = []
    for part in PROMPTS[name]:
        if isinstance(part, list):
            made += part
            continue
        made += image_tokens(case, part)
        images.append(part)
    return made, images


def template_tokens(case: str, name: str) -> tuple[list[int], list[int]]:
    """The same with one placeholder for each image, as a chat template writes it."""
    parts = PROMPTS[name]
    one = [START, IMAGE, END] if case in MARKED else [IMAGE]
    made = [token for part in parts for token in (part if isinstance(part, list) else one)]
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
    if case == "qwen3_vl_moe":  # released checkpoints hold stacks of experts turned
        made |= {name: np.ascontiguousarray(made[name].swapaxes(1, 2)) for name in made if "mlp.experts." in name}
    if case == "gemma3":  # llama.cpp's converter keeps this one in f16
        matrix = "multi_modal_projector.mm_input_projection_weight"
        made[matrix] = made[matrix].astype(np.float16).astype(np.float32)
    return made


def expected(case: str) -> dict[str, Any]:
    return dict(np.load(FIXTURES / f"{case}.npz"))
