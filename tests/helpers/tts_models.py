"""A tiny Qwen3-TTS of random numbers as its files: those that the released code was run with, and bytes as tokens."""

import json
import shutil
from pathlib import Path
from typing import Any

import speech_models

FIXTURE = Path(__file__).parents[1] / "fixtures" / "qwen3_tts"
NAMES = {290: "<|im_start|>", 291: "<|im_end|>", 292: "<tts_pad>", 293: "<tts_text_bos>", 294: "<tts_text_eod>"}


def tokenizer() -> dict[str, Any]:
    made = speech_models.tokenizer()
    made["model"]["vocab"] |= {f"<{i}>": i for i in range(256, 290)}  # ids without gaps
    made["added_tokens"] = [
        {"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True} for i, name in NAMES.items()
    ]  # fmt: skip
    return made


def write(folder: Path, kind: str = "custom_voice", **changes: Any) -> Path:
    """A folder with a model of that kind."""
    folder.mkdir(parents=True)
    (folder / "speech_tokenizer").mkdir()
    for name in ("model.safetensors", "speech_tokenizer/model.safetensors", "speech_tokenizer/config.json"):
        shutil.copyfile(FIXTURE / name, folder / name)
    config = json.loads((FIXTURE / "config.json").read_text())
    config |= {"tts_model_type": kind, "tts_model_size": "1b7", **changes}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.9, "top_k": 50}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    return folder
