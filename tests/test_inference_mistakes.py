"""`InferenceEngine`: arguments of the wrong kind get a sentence, and arrays will do for lists."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tahr import InferenceEngine
from tahr.errors import ConfigError
from test_inference_engine import load


@pytest.fixture(scope="module")
def engine(stories: Path) -> InferenceEngine:
    return load(stories)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: e.generate(5, 3), "text is 5, but it must be a text"),
        (lambda e: e.generate_with_config("Once", 3, {"temperature": 1}), "must be SamplingParams"),
        (lambda e: e.prefill("abc"), "tokens are 'abc', but they must be a list of token ids"),
        (lambda e: e.prefill([1.5]), "must be a list of token ids"),
        (lambda e: e.forward_one(None), "must be a list of token ids"),
        (lambda e: e.beam_generate("abc"), "must be a list of token ids"),
        (lambda e: e.embed(None), "text is None"),
        (lambda e: e.generate_with_logits([], np.zeros(3, np.float32), 1), "logits have the shape"),
        (lambda e: e.generate_with_logits([], [0.0], 1), "logits have the shape"),
    ],
)
def test_mistakes_get_sentences(engine: InferenceEngine, call: Callable[[InferenceEngine], Any], words: str) -> None:
    engine.truncate(0)
    with pytest.raises(ConfigError, match=words):
        call(engine)


def test_tokens_may_be_an_array(engine: InferenceEngine) -> None:
    tokens = engine.tokenize("Once upon a time")
    engine.truncate(0)
    expected = engine.forward_prefill(tokens, 0).copy()
    engine.truncate(0)
    np.testing.assert_array_equal(engine.forward_prefill(np.array(tokens), 0), expected)  # type: ignore[arg-type]
