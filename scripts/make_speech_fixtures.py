"""Computes what the tests of Whisper expect, with transformers: run by hand when a case is added.

Usage: python scripts/make_speech_fixtures.py [case ...]
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from speech_cases import (  # noqa: E402
    CASES,
    FIXTURES,
    HEADS,
    N_NEW,
    PROMPT,
    SAID,
    SHAPES,
    frames_of,
    make_weights,
    next_token,
)


def write(folder: str, case: str, weights: dict[str, np.ndarray]) -> None:
    from safetensors.numpy import save_file

    (Path(folder) / "config.json").write_text(json.dumps(CASES[case]))
    save_file(weights, Path(folder) / "model.safetensors")


def saved_shapes(case: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint that transformers saves for the case's config."""
    from safetensors.numpy import load_file
    from transformers import AutoConfig, WhisperForConditionalGeneration

    with tempfile.TemporaryDirectory() as folder:
        write(folder, case, {})
        WhisperForConditionalGeneration(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
        return {name: tensor.shape for name, tensor in sorted(tensors.items())}


def model_of(case: str) -> Any:
    import torch
    from transformers import WhisperForConditionalGeneration

    with tempfile.TemporaryDirectory() as folder:
        write(folder, case, make_weights(case))
        model = WhisperForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
    return model.eval()


def looks_of(case: str) -> dict[str, np.ndarray]:
    """How a text looks at the rows, how likely its tokens are, and the first row of each by transformers' functions."""
    import torch
    from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

    features = torch.from_numpy(frames_of(case).T[None])
    with torch.no_grad():
        found = model_of(case)(features, decoder_input_ids=torch.tensor([SAID]), output_attentions=True)
    weights = torch.stack([found.cross_attentions[layer][0, head] for layer, head in HEADS[case]])
    std, mean = torch.std_mean(weights, dim=1, keepdim=True, unbiased=False)
    alignment = _median_filter((weights - mean) / std, 7).mean(dim=0)
    tokens, rows = _dynamic_time_warping(-alignment[3:-1].double().numpy())
    starts = rows[np.diff(tokens, prepend=-1) > 0]
    return {"weights": weights.numpy(), "logits": found.logits[0].numpy(), "starts": starts}


def expected(case: str) -> dict[str, np.ndarray]:
    """The encoder's rows, the logits of a prompt, and the likeliest tokens after it, one by one."""
    import torch

    model = model_of(case)
    features = torch.from_numpy(frames_of(case).T[None])
    tokens = list(PROMPT)
    with torch.no_grad():
        rows = model.model.encoder(features).last_hidden_state
        for _ in range(N_NEW):
            logits = model(encoder_outputs=(rows,), decoder_input_ids=torch.tensor([tokens])).logits[0]
            tokens.append(next_token(logits[-1].numpy(), tokens))
    return {"rows": rows[0].numpy(), "logits": logits.numpy(), "tokens": np.array(tokens)}


def main() -> None:
    FIXTURES.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(case)}: {json.dumps(saved_shapes(case))}" for case in CASES]
    SHAPES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    for case in sys.argv[1:] or CASES:
        np.savez_compressed(FIXTURES / f"{case}.npz", **expected(case))  # type: ignore[arg-type]
        np.savez_compressed(FIXTURES / f"{case}_looks.npz", **looks_of(case))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
