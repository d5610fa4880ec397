"""What released models that chat about images say of themselves, and what damaged ones are told."""

from typing import Any

import pytest

from tahr.errors import TahrError
from tahr.models.config.record import ModelConfig
from tahr.models.loader import from_hf

TEXT = {
    "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652, "vision_end_token_id": 151653,
    "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "use_sliding_window": False,
    "sliding_window": 32768, "max_window_layers": 28, "tie_word_embeddings": True, "vocab_size": 151936,
}  # fmt: skip
PATCHES = {
    "depth": 32, "num_heads": 16, "in_chans": 3, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14,
    "temporal_patch_size": 2,
}  # fmt: skip
# As the files of Qwen2-VL-2B and Qwen2.5-VL-3B say it: the text model's fields stand at the top.
RELEASED: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        **TEXT, "model_type": "qwen2_vl", "hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12,
        "num_hidden_layers": 28, "num_key_value_heads": 2,
        "vision_config": {**PATCHES, "embed_dim": 1280, "mlp_ratio": 4, "hidden_size": 1536},
    },
    "qwen2_5_vl": {
        **TEXT, "model_type": "qwen2_5_vl", "hidden_size": 2048, "intermediate_size": 11008, "num_attention_heads": 16,
        "num_hidden_layers": 36, "num_key_value_heads": 2,
        "vision_config": {**PATCHES, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 2048,
                          "hidden_act": "silu", "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]},
    },
    # As those of llava-1.5-7b-hf say it, which leaves out what is usual.
    "llava": {
        "model_type": "llava", "ignore_index": -100, "image_token_index": 32000, "pad_token_id": 32001,
        "projector_hidden_act": "gelu", "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
        "text_config": {"max_position_embeddings": 4096, "model_type": "llama", "rms_norm_eps": 1e-5,
                        "vocab_size": 32064},
        "vision_config": {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "num_hidden_layers": 24,
                          "model_type": "clip_vision_model", "num_attention_heads": 16, "patch_size": 14,
                          "projection_dim": 768, "vocab_size": 32000},
    },
    "smolvlm": {
        "model_type": "smolvlm", "image_token_id": 49190, "scale_factor": 4, "tie_word_embeddings": False,
        "text_config": {"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
                        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49280, "head_dim": 64,
                        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000},
        "vision_config": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "image_size": 512,
                          "num_attention_heads": 12, "patch_size": 16, "model_type": "smolvlm_vision"},
    },
}  # fmt: skip


def read(case: str, **vision: object) -> ModelConfig:
    config = RELEASED[case]
    return from_hf({**config, "vision_config": config["vision_config"] | vision}, name=case)


@pytest.mark.parametrize("case", ["qwen2_vl", "qwen2_5_vl"])
def test_towers_of_released_models(case: str) -> None:
    cfg = read(case)
    vision = cfg.chat_vision
    assert vision is not None
    layers = vision.layers
    assert (vision.width_out, vision.placeholder, vision.n_positions) == (cfg.width, 151655, 0)
    assert (layers.n_layers, layers.width, layers.n_heads, layers.head_dim) == (32, 1280, 16, 80)
    assert cfg.kinds[0].rope.axes == (0,) * 16 + (1,) * 24 + (2,) * 24


def test_towers_of_images_of_one_size() -> None:
    llava = read("llava")
    tower = llava.chat_vision
    assert tower and (llava.width, llava.n_layers, llava.ffn_width, llava.n_vocab) == (4096, 32, 11008, 32064)
    assert (tower.layers.n_layers, tower.layers.width, tower.layers.activation) == (23, 1024, "quick_gelu")
    assert (tower.side, tower.n_positions, tower.n_fixed_rows, tower.placeholder) == (24, 577, 576, 32000)
    tiles = read("smolvlm").chat_vision
    assert tiles and (tiles.side, tiles.n_positions, tiles.n_fixed_rows, tiles.placeholder) == (32, 1024, 64, 49190)
    assert (tiles.layers.n_layers, tiles.layers.activation, tiles.layers.norm_eps) == (12, "gelu_tanh", 1e-6)


@pytest.mark.parametrize(("layer", "n"), [(-2, 23), (-1, 24), (-24, 1), (1, 1), (24, 24)])
def test_the_layer_that_is_read(layer: int, n: int) -> None:
    vision = from_hf({**RELEASED["llava"], "vision_feature_layer": layer}).chat_vision
    assert vision and vision.layers.n_layers == len(vision.layers.kinds) == n


@pytest.mark.parametrize(
    ("case", "changes", "sentence"),
    [
        ("llava", {"vision_feature_layer": -25}, "vision_feature_layer"),
        ("llava", {"vision_feature_layer": 0}, "vision_feature_layer"),
        ("llava", {"vision_feature_layer": [-2, -5]}, "vision_feature_layer"),
        ("llava", {"vision_feature_layer": True}, "vision_feature_layer"),
        ("llava", {"vision_feature_select_strategy": "full"}, "'full'"),
        ("llava", {"image_token_index": 32064}, "image_token_index"),
        ("llava", {"projector_hidden_act": "mish"}, "mish"),
        ("llava", {"text_config": {"model_type": "qwen2"}}, "'qwen2'"),
        ("llava", {"vision_config": {"model_type": "siglip_vision_model"}}, "'siglip_vision_model'"),
        ("llava", {"vision_config": {"image_size": 13}}, "patch_size"),
        ("smolvlm", {"scale_factor": 3}, "scale_factor"),
        ("smolvlm", {"scale_factor": 0}, "scale_factor"),
        ("smolvlm", {"image_token_id": 49280}, "image_token_id"),
        ("smolvlm", {"vision_config": {"num_channels": 4}}, "three colours"),
    ],
)
def test_towers_put_together_in_other_ways(case: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TahrError, match=sentence):
        from_hf(RELEASED[case] | changes, name=case)


def test_what_sets_the_two_apart() -> None:
    older = read("qwen2_vl").chat_vision
    newer = read("qwen2_5_vl").chat_vision
    assert older and newer
    assert (older.gated, older.layers.ffn_width, older.layers.norm_kind, older.layers.activation) == (
        *(False, 5120, "layer", "quick_gelu"),
    )
    assert (newer.gated, newer.layers.ffn_width, newer.layers.norm_kind, newer.layers.activation) == (
        *(True, 3420, "rms", "silu"),
    )
    assert [older.is_windowed(i) for i in range(32)] == [False] * 32
    assert [i for i in range(32) if not newer.is_windowed(i)] == [7, 15, 23, 31]
    assert newer.window == 4  # squares of 28 pixels


@pytest.mark.parametrize(
    ("case", "vision", "sentence"),
    [
        ("qwen2_5_vl", {"window_size": 0}, "window_size"),
        ("qwen2_5_vl", {"window_size": 27}, "window_size"),
        ("qwen2_5_vl", {"window_size": 1 << 31}, "window_size"),
        ("qwen2_5_vl", {"fullatt_block_indexes": [7, 32]}, "fullatt_block_indexes"),
        ("qwen2_5_vl", {"fullatt_block_indexes": [15, 7]}, "fullatt_block_indexes"),
        ("qwen2_5_vl", {"fullatt_block_indexes": "all"}, "fullatt_block_indexes"),
        ("qwen2_5_vl", {"out_hidden_size": 4096}, "out_hidden_size"),
        ("qwen2_vl", {"mlp_ratio": 1 << 31}, "mlp_ratio"),
        ("qwen2_vl", {"embed_dim": -1280}, "embed_dim"),
        ("qwen2_vl", {"hidden_size": 0}, "hidden_size"),
        ("qwen2_vl", {"depth": 1 << 31}, "depth|num_hidden_layers"),
        ("qwen2_vl", {"spatial_merge_size": 0}, "spatial_merge_size"),
        ("qwen2_vl", {"patch_size": 1 << 31}, "patch_size"),
        ("qwen2_vl", {"num_heads": 0}, "num_heads|num_attention_heads"),
    ],
)
def test_damaged_towers_are_refused_by_field(case: str, vision: dict[str, object], sentence: str) -> None:
    with pytest.raises(TahrError, match=sentence):
        read(case, **vision)
