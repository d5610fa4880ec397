"""Recomputes with transformers what the stored fixtures say, and compares Tahr with it directly (`make parity`)."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="parity needs torch: run `make parity`")
pytest.importorskip("transformers", reason="parity needs transformers: run `make parity`")

import assets  # noqa: E402
import story_model  # noqa: E402
from make_model_fixtures import (  # noqa: E402
    ATTENTION,
    FIXTURES,
    expected_logits,
    expected_story,
    in_known_words,
    model_class,
)
from model_cases import CASES, NO_GGUF, make_weights, token_ids  # noqa: E402
from model_files import to_gguf, write_hf  # noqa: E402
from model_runs import Runs  # noqa: E402
from tahr.backends.reference.backend import ReferenceBackend  # noqa: E402
from tahr.models.loader import OpenedModel, load, open_model  # noqa: E402

TOLERANCE = 1e-4


def tahr_logits(source: OpenedModel) -> np.ndarray:
    backend = ReferenceBackend()
    return Runs(load(source, backend), backend).eager([(0, token_ids())])


@pytest.mark.parametrize("case", CASES)
def test_stored_logits_are_what_transformers_says(case: str) -> None:
    live, stored = expected_logits(case), np.load(FIXTURES / f"{case}.npz")["logits"]
    assert np.abs(live - stored).max() <= TOLERANCE  # recurrences in torch differ by 4e-5 between processors


@pytest.mark.parametrize("case", CASES)
def test_what_transformers_saves_is_what_tahr_loads(case: str, tmp_path: Path) -> None:
    """Through save_pretrained, so that config.json and tensor names are the present release's own."""
    written = write_hf(tmp_path / "ours", in_known_words(case), make_weights(CASES[case]))
    attention = ATTENTION.get(case, "eager")
    model = model_class(case).from_pretrained(written, dtype=torch.float32, attn_implementation=attention)
    model.save_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        live = model(torch.tensor([token_ids()])).logits[0].numpy()
    assert np.abs(tahr_logits(open_model([], tmp_path / "theirs")) - live).max() <= TOLERANCE


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_a_text_beyond_the_first_context_has_the_factors_of_long_ones(form: str, tmp_path: Path) -> None:
    config, arrays = {**CASES["phi3_long"], "original_max_position_embeddings": 16}, make_weights(CASES["phi3_long"])
    written = write_hf(tmp_path, config, arrays)
    model = model_class("phi3_long").from_pretrained(written, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        live = model(torch.tensor([token_ids()])).logits[0].numpy()
    opened = open_model(to_gguf(config, arrays)) if form == "gguf" else open_model([], written)
    assert np.abs(tahr_logits(replace(opened, n_context=len(token_ids()))) - live).max() <= TOLERANCE
    assert np.abs(tahr_logits(opened) - live).max() > 100 * TOLERANCE


@pytest.mark.parametrize("case", [case for case in CASES if case not in NO_GGUF])
def test_gguf_says_what_transformers_says(case: str) -> None:
    made = tahr_logits(open_model(to_gguf(CASES[case], make_weights(CASES[case]))))
    assert np.abs(made - expected_logits(case)).max() <= TOLERANCE


def test_stored_story_is_what_transformers_says() -> None:
    assert expected_story(assets.stories().parent / "hf") == json.loads(assets.greedy_story().read_text())


def test_the_story_model_of_our_own_says_what_transformers_says(tmp_path: Path) -> None:
    story_model.write(tmp_path)
    assert expected_story(tmp_path / "hf") == json.loads((story_model.FIXTURE / "greedy.json").read_text())
