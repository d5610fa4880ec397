"""Models that chat about images, as tiny random ones: rows, logits and replies equal those of transformers."""

import numpy as np
import pytest

import backends_here
from chat_vision_cases import BANNED, CASES, N_GREEDY, PROMPTS, expected
from chat_vision_runs import engine_of, images_of, loaded_on, prompt_of, rows_made, submitted
from engines import greedy, run

TOLERANCE = 1e-4
# Recurrent layers with random weights magnify rounding: transformers in f32 is 6e-4 off its own logits in f64.
TOLERANCE_OF_STATES = 1e-3


@pytest.mark.parametrize("name", backends_here.NAMES)
@pytest.mark.parametrize("case", CASES)
def test_rows_equal_those_of_transformers(case: str, name: str) -> None:
    assert not [line for line in loaded_on(case, name).log if line.startswith("Not used")]
    images = images_of(case, loaded_on(case, name).config)
    found = rows_made(engine_of(case, name), images)
    for i in range(len(images)):
        assert np.abs(found[i] - expected(case)[f"image_{i}"]).max() <= TOLERANCE


@pytest.mark.parametrize("name", backends_here.NAMES)
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case: str, prompt: str, name: str) -> None:
    tokens, rows = prompt_of(case, prompt, loaded_on(case, name).config)
    found: list[np.ndarray] = []
    engine = engine_of(case, name)
    engine.submit_rows(tokens, lambda made: found.append(made.copy()), first_row=0, rows=rows)
    while engine.busy:
        engine.step()
    tolerance = TOLERANCE_OF_STATES if case == "qwen3_5" else TOLERANCE
    assert np.abs(np.concatenate(found) - expected(case)[f"logits_{prompt}"]).max() <= tolerance


@pytest.mark.parametrize("name", backends_here.NAMES)
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("case", CASES)
def test_replies_equal_those_of_transformers(case: str, prompt: str, name: str) -> None:
    engine = engine_of(case, name)
    seq = submitted(engine, case, prompt, loaded_on(case, name).config, greedy(N_GREEDY, banned_tokens=BANNED))
    run(engine, seq)
    assert seq.tokens[-N_GREEDY:] == list(expected(case)[f"greedy_{prompt}"])
