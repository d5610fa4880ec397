"""A tiny Whisper of random numbers as its files: bytes as tokens, three languages, windows of 0.8 s."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gguf_maker import safetensors
from speech_cases import WHISPER, shapes_of
from vision_cases import values

N_BYTES = 256
LANGUAGES = ("en", "de", "yue")
NAMES = [
    "endoftext",
    "startoftranscript",
    *LANGUAGES,
    "translate",
    "transcribe",
    "startoflm",
    "startofprev",
    "nospeech",
]
N_ROWS = WHISPER["max_source_positions"]
TIMES = [f"{0.02 * i:.2f}" for i in range(N_ROWS + 1)]
TOKENS = {f"<|{name}|>": N_BYTES + i for i, name in enumerate([*NAMES, "notimestamps", *TIMES])}
N_VOCAB = N_BYTES + len(TOKENS)
CONFIG = {
    **WHISPER,
    "vocab_size": N_VOCAB,
    "max_target_positions": 48,
    "decoder_start_token_id": TOKENS["<|startoftranscript|>"],
    "eos_token_id": TOKENS["<|endoftext|>"],
}


def letter_of_bytes() -> dict[int, str]:
    """The letter that stands for each byte in byte-level vocabularies."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def tokenizer() -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": not name[2].isdigit()} for name, i in TOKENS.items()
    ]  # fmt: skip
    vocabulary = {letter: byte for byte, letter in letter_of_bytes().items()}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
             "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary,
             "merges": []}  # fmt: skip
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}  # fmt: skip


def generation(**changes: Any) -> dict[str, Any]:
    return {
        "is_multilingual": True,
        "decoder_start_token_id": TOKENS["<|startoftranscript|>"],
        "eos_token_id": TOKENS["<|endoftext|>"],
        "no_timestamps_token_id": TOKENS["<|notimestamps|>"],
        "lang_to_id": {f"<|{code}|>": TOKENS[f"<|{code}|>"] for code in LANGUAGES},
        "suppress_tokens": [i for name, i in TOKENS.items() if name[2:] in ("translate|>", "startofprev|>")],
        "begin_suppress_tokens": [32, TOKENS["<|endoftext|>"]],
        "alignment_heads": [[1, 0], [0, 1]],
        **changes,
    }


@cache
def weights() -> bytes:
    found = {}
    for name, shape in shapes_of("whisper").items():
        if name == "model.decoder.embed_positions.weight":
            shape = [CONFIG["max_target_positions"], shape[1]]
        if name in ("model.decoder.embed_tokens.weight", "proj_out.weight"):
            shape = [N_VOCAB, shape[1]]
        named = "model.decoder.embed_tokens.weight" if name == "proj_out.weight" else name
        found[name] = ("F32", shape, np.asarray(values(named, tuple(shape)), np.float32).tobytes())
    return safetensors(found)


def write(folder: Path, **changes: Any) -> Path:
    """A checkpoint; `changes` are of generation_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(weights())
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps(generation(**changes)))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    return folder
