"""Byte-level vocabularies of two files, vocab.json and merges.txt, as a tokenizer.json: those of Qwen2 and later.

Other tokenizers have such files too and split texts otherwise: only these are read without a tokenizer.json.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tahr.errors import TokenizerError
from tahr.text.tokens.json_object import read_object

CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MOST_ADDED = 10_000
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def is_byte_level(path: Path) -> bool:
    """Whether the files of a folder name this tokenizer."""
    config = read_object(path / "tokenizer_config.json", TokenizerError)
    return config.get("tokenizer_class") in CLASSES


def byte_level_json(vocabulary: bytes, merges: bytes, config: Mapping[str, Any]) -> str:
    """The tokenizer.json that these files stand for."""
    try:
        vocab = json.loads(vocabulary)
        lines = merges.decode().splitlines()
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"vocab.json or merges.txt cannot be read ({error}): fetch the model again.") from error
    pairs = [line for line in lines if line and not line.startswith("#version")]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": WORDS + SPACES}, "behavior": "Isolated", "invert": False}
    tree = {
        "version": "1.0",
        "added_tokens": added_tokens(config),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": pairs},
    }
    return json.dumps(tree)


def added_tokens(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tokens that tokenizer_config.json adds, in the order of their ids."""
    stored = config.get("added_tokens_decoder") or {}
    if not isinstance(stored, Mapping) or len(stored) > MOST_ADDED:
        raise TokenizerError("tokenizer_config.json lists its added tokens wrongly: fetch the model again.")
    return sorted((added_token(name, token) for name, token in stored.items()), key=lambda token: int(token["id"]))


def added_token(name: str, token: Any) -> dict[str, Any]:
    if not (name.isascii() and name.isdecimal() and len(name) < 10):
        raise TokenizerError(f"tokenizer_config.json adds a token {name[:20]!r}, which is no number.")
    if not isinstance(token, Mapping) or not isinstance(token.get("content"), str):
        raise TokenizerError(f"tokenizer_config.json does not say what its token {name} is: fetch the model again.")
    flags = {flag: token.get(flag) is True for flag in FLAGS}
    return {"id": int(name), "content": token["content"], **flags}
