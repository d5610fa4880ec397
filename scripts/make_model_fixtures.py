"""Computes the logits and texts the model tests expect, with transformers: run by hand when a case is added.

Usage: python scripts/make_model_fixtures.py [case ...]
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "fixtures" / "models"
N_STORY_TOKENS = 200
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]

import assets  # noqa: E402
from family_cases import MORE_CASES  # noqa: E402
from model_cases import CASES, SHAPES, make_weights, recorded_shapes, token_ids  # noqa: E402
from model_files import write_hf  # noqa: E402
from tahr.weights import open_safetensors  # noqa: E402

# Families that transformers has under other names, or lacks, in the words of those whose classes compute the same.
IN_OTHER_WORDS = {
    "internlm3": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "minicpm": {
        "model_type": "granite", "architectures": ["GraniteForCausalLM"], "embedding_multiplier": 12.0,
        "residual_multiplier": 1.4 / 3**0.5, "attention_multiplier": 16**-0.5, "logits_scaling": 64 / 256,
    }
}  # fmt: skip


ATTENTION = {"falcon_rw": "sdpa"}  # transformers' eager attention adds ALiBi to Falcon's scores twice


def model_class(case: str) -> Any:
    """The class that transformers has for a case; not all are known to its automatic choice."""
    import transformers

    return getattr(transformers, in_known_words(case)["architectures"][0], transformers.AutoModelForCausalLM)


def in_known_words(case: str) -> dict[str, Any]:
    return {**CASES[case], **IN_OTHER_WORDS.get(case, {})}


def expected_logits(case: str) -> np.ndarray:
    """What transformers says of every token of the case, in f32."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = write_hf(Path(folder), in_known_words(case), make_weights(CASES[case]))
        model, info = model_class(case).from_pretrained(
            path, dtype=torch.float32, attn_implementation=ATTENTION.get(case, "eager"), output_loading_info=True
        )
    assert not any(info.values()), info  # a weight transformers did not know would make the fixture a lie
    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor([token_ids()])).logits[0].numpy()
    return logits


def saved_shapes(case: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint that transformers saves for the case's config."""
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory() as folder:
        write_hf(Path(folder), in_known_words(case), {})
        model_class(case)._from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
        tensors = open_safetensors(Path(folder) / "model.safetensors").tensors
        return {name: tensor.shape for name, tensor in sorted(tensors.items())}


def record_shapes(cases: list[str]) -> None:
    found = recorded_shapes() | {case: saved_shapes(case) for case in cases}
    lines = [f"{json.dumps(case)}: {json.dumps(found[case])}" for case in MORE_CASES if case in found]
    SHAPES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def expected_story(folder: Path) -> list[int]:
    """A beginning-of-text token and the greedy tokens after it, by the model in a Hugging Face folder."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    ids = [1]
    with torch.no_grad():
        while len(ids) <= N_STORY_TOKENS:
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids


def main(cases: list[str]) -> None:
    FIXTURES.mkdir(parents=True, exist_ok=True)
    record_shapes([case for case in cases or CASES if case in MORE_CASES])
    for case in cases or CASES:
        path = FIXTURES / f"{case}.npz"
        np.savez_compressed(path, logits=expected_logits(case))
        print(path.relative_to(ROOT), path.stat().st_size, "bytes")
    if not cases:
        assets.greedy_story().write_text(json.dumps(expected_story(assets.stories().parent / "hf")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
