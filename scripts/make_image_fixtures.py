"""Computes the digests of pixels that the tests of image processors expect, with transformers and Pillow: run by hand.

Usage: python scripts/make_image_fixtures.py [processor ...]
"""

import json
import sys
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]

from image_cases import CASES, DIGESTS, PROCESSORS, case_name, digests, png  # noqa: E402


def processor_of(config: dict[str, Any]) -> Any:
    """The class of transformers that works with Pillow."""
    import transformers

    kind = str(config.get("image_processor_type") or config["feature_extractor_type"])
    name = kind.removesuffix("Fast").replace("FeatureExtractor", "ImageProcessor")
    return getattr(transformers, f"{name}Pil")(**config)


def values_of(processor: Any, data: bytes) -> np.ndarray:
    from PIL import Image
    from transformers.image_utils import load_image

    found = processor(load_image(Image.open(BytesIO(data))), return_tensors="np")
    if "num_patches" in found:  # the tiles of all images, of which there is one
        return np.asarray(found["pixel_values"], np.float32)
    values = np.asarray(found["pixel_values"][0], np.float32)
    if values.ndim == 4:  # tiles, none of which is padded
        assert "pixel_attention_mask" not in found or found["pixel_attention_mask"].all()
        return values
    return values[found["pixel_attention_mask"][0] == 1] if "pixel_attention_mask" in found else values


def main(names: list[str]) -> None:
    DIGESTS.parent.mkdir(parents=True, exist_ok=True)
    found = digests() if DIGESTS.is_file() else {}
    for name in names:
        processor = processor_of(PROCESSORS[name])
        found[name] = {
            case_name(*case): sha256(np.ascontiguousarray(values_of(processor, png(*case))).tobytes()).hexdigest()[:16]
            for case in CASES
        }
        print(name, len(found[name]), "images")
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in PROCESSORS if name in found]
    DIGESTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:] or list(PROCESSORS))
