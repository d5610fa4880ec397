"""Computes the vectors that the tests of towers expect, with transformers: run by hand when a case is added.

Usage: python scripts/make_vision_fixtures.py [case ...]
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from vision_cases import CASES, FIXTURES, SHAPES, image_inputs, make_weights, text_inputs  # noqa: E402


def model_class(case: str) -> Any:
    import transformers

    return getattr(transformers, CASES[case]["architectures"][0])


def write(folder: str, case: str, weights: dict[str, np.ndarray]) -> None:
    from safetensors.numpy import save_file

    (Path(folder) / "config.json").write_text(json.dumps(CASES[case]))
    save_file(weights, Path(folder) / "model.safetensors")


def saved_shapes(case: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint that transformers saves for the case's config."""
    from safetensors.numpy import load_file
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory() as folder:
        write(folder, case, {})
        model_class(case)(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
        return {name: tensor.shape for name, tensor in sorted(tensors.items())}


def expected(case: str) -> dict[str, np.ndarray]:
    """What transformers makes of the case's images and texts."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        write(folder, case, make_weights(case))
        model, info = model_class(case).from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    assert not any(info.values()), info
    model.eval()

    def vectors(found: Any) -> np.ndarray:
        return (found if isinstance(found, torch.Tensor) else found.pooler_output).numpy()

    def of_each(features: Any, inputs: list[dict[str, np.ndarray]]) -> np.ndarray:
        tensors = [{name: torch.tensor(each) for name, each in one.items()} for one in inputs]
        return np.concatenate([vectors(features(**one)) for one in tensors])

    with torch.no_grad():
        return {
            "images": of_each(model.get_image_features, image_inputs(case)),
            "texts": of_each(model.get_text_features, text_inputs(case)),
        }


def main(cases: list[str]) -> None:
    FIXTURES.mkdir(parents=True, exist_ok=True)
    found = json.loads(SHAPES.read_text()) if SHAPES.is_file() else {}
    found |= {case: saved_shapes(case) for case in cases}
    lines = [f"{json.dumps(case)}: {json.dumps(found[case])}" for case in CASES if case in found]
    SHAPES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    for case in cases:
        np.savez_compressed(FIXTURES / f"{case}.npz", **expected(case))
        print(case, (FIXTURES / f"{case}.npz").stat().st_size, "bytes")


if __name__ == "__main__":
    main(sys.argv[1:] or list(CASES))
