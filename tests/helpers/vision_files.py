"""Folders of tiny models that embed images and texts, with everything a released one has."""

from pathlib import Path
from typing import Any

from encoder_files import WORDS, wordpiece, write_json
from model_files import write_hf
from vision_cases import CASES, make_weights

PROCESSORS: dict[str, dict[str, Any]] = {
    "clip": {"feature_extractor_type": "CLIPFeatureExtractor", "size": 40, "crop_size": 40},
    "clip_gelu": {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 45}, "crop_size": 45},
    "chinese_clip": {"image_processor_type": "ChineseCLIPFeatureExtractor", "size": 40, "crop_size": 40},
    "siglip": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 40, "width": 40}},
    "siglip2": {"image_processor_type": "Siglip2ImageProcessor", "patch_size": 8, "max_num_patches": 40},
}


def write_vision(folder: Path, case: str, **files: Any) -> str:
    """The case's model with a tokenizer; Chinese-CLIP's is a list of pieces. `files` is what else lies there."""
    write_hf(folder, CASES[case], make_weights(case))
    write_json(folder / "preprocessor_config.json", PROCESSORS[case])
    if case == "chinese_clip":
        (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    else:
        wordpiece().save(str(folder / "tokenizer.json"))
    if case.startswith("siglip"):
        files = {"tokenizer_config": {"pad_token": "[PAD]", "tokenizer_class": "SiglipTokenizer"}} | files
    for name, content in files.items():
        write_json(folder / f"{name}.json", content)
    return str(folder)
