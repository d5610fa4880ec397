"""Computes the states and scores the encoder tests expect, with transformers: run by hand when a case is added.

Usage: python scripts/make_encoder_fixtures.py [case ...]
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]

from encoder_cases import CASES, FIXTURES, RANKERS, SHAPES, make_weights, text_ids, type_ids  # noqa: E402
from model_files import write_hf  # noqa: E402
from tahr.weights import open_safetensors  # noqa: E402


def model_class(case: str) -> Any:
    import transformers

    return getattr(transformers, CASES[case]["architectures"][0])


def saved_shapes(case: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint that transformers saves for the case's config."""
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory() as folder:
        write_hf(Path(folder), CASES[case], {})
        model_class(case)(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
        tensors = open_safetensors(Path(folder) / "model.safetensors").tensors
        return {name: tensor.shape for name, tensor in sorted(tensors.items())}


def expected(case: str) -> dict[str, np.ndarray]:
    """What transformers makes of the case's text: the states of its tokens and, of a ranker, the score of the pair."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = write_hf(Path(folder), CASES[case], make_weights(case))
        model, info = model_class(case).from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    assert not any(info.values()), info
    ids = torch.tensor([text_ids()])
    with torch.no_grad():
        if case not in RANKERS:
            return {"states": model.eval()(ids).last_hidden_state[0].numpy()}
        types = {"token_type_ids": torch.tensor([type_ids()])} if CASES[case]["model_type"] == "bert" else {}
        out = model.eval()(ids, **types, output_hidden_states=True)
        return {"scores": out.logits[0].numpy()}


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
