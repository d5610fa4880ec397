"""Tiny random models that write down recordings: configs, weights that any machine can make again, frames, prompts."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from vision_cases import values

Config = dict[str, Any]
Arrays = dict[str, np.ndarray]
FIXTURES = Path(__file__).parents[1] / "fixtures" / "speech"
SHAPES = FIXTURES / "shapes.json"

WHISPER: Config = {
    "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"],
    "d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "num_hidden_layers": 3,
    "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 48,
    "num_mel_bins": 20, "max_source_positions": 40, "max_target_positions": 24, "vocab_size": 96,
    "activation_function": "gelu", "decoder_start_token_id": 1, "eos_token_id": 95, "pad_token_id": 95,
    "bos_token_id": 95, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
CASES: dict[str, Config] = {
    "whisper": WHISPER,
    # One layer more on the decoder's side, heads of another size, and rows that fill no page.
    "whisper_wide": {
        **WHISPER, "d_model": 96, "encoder_layers": 2, "decoder_layers": 3, "num_hidden_layers": 2,
        "encoder_attention_heads": 3, "decoder_attention_heads": 3, "num_mel_bins": 128, "max_source_positions": 75,
    },
}  # fmt: skip
PROMPT = [1, 7, 30]
N_NEW = 12
SAID = [1, 7, 30, 55, 12, 80, 44, 91, 3, 61, 95]  # a text that is looked at: three tokens before it, an end behind it
HEADS = {"whisper": [(0, 1), (1, 0)], "whisper_wide": [(0, 2), (1, 0), (2, 1)]}  # layers and heads


def frames_of(case: str, seed: int = 3) -> np.ndarray:
    """[n_frames, n_bins]."""
    config = CASES[case]
    rng = np.random.RandomState(seed)
    return rng.standard_normal((2 * config["max_source_positions"], config["num_mel_bins"])).astype(np.float32)


def next_token(logits: np.ndarray, tokens: list[int]) -> int:
    """The likeliest token that is not there yet: random models repeat themselves."""
    return next(int(token) for token in np.argsort(-logits) if token not in tokens)


def shapes_of(case: str) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = json.loads(SHAPES.read_text())[case]
    return shapes


def make_weights(case: str) -> Arrays:
    """The same numbers on every machine: each tensor's values depend on its name and shape alone."""
    return {name: values(name, tuple(shape)) for name, shape in shapes_of(case).items()}
