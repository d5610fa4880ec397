"""`InferenceEngine`: wrong arguments get a sentence, arrays will do for lists, and interrupts leave no half a text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tahr import InferenceConfig, InferenceEngine, SpeculativeEngine
from tahr.backends.cpu.backend import CpuBackend
from tahr.errors import ConfigError, LoadError
from tahr.loading import builder
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
        (lambda e: e.embed_batch(None), "text is None"),
        (lambda e: e.embed_batch([[1, 2]]), "must be a text"),
        (lambda e: e.beam_generate([1], {"beam_width": 2}), "needs a BeamSearchConfig"),
        (lambda e: e.truncate(0.0), "cannot be cut to 0.0"),
        (lambda e: e.truncate(None), "cannot be cut to None"),
        (lambda e: e.kv_restore(None), "is no KV copy"),
        (lambda e: e.load_model_from_bytes("GGUF"), "must be the bytes of a GGUF file"),
        (lambda e: e.generate_with_logits([], np.zeros(3, np.float32), 1), "logits have the shape"),
        (lambda e: e.generate_with_logits([], [0.0], 1), "logits have the shape"),
    ],
)
def test_mistakes_get_sentences(engine: InferenceEngine, call: Callable[[InferenceEngine], Any], words: str) -> None:
    engine.truncate(0)
    with pytest.raises(ConfigError, match=words):
        call(engine)


@pytest.mark.parametrize("call", [lambda e: e.generate("Lily", 3), lambda e: e.truncate(0), lambda e: e.truncate(1)])
def test_a_callback_that_changes_the_text_is_told_so(
    engine: InferenceEngine, call: Callable[[InferenceEngine], Any]
) -> None:
    """The reply would go on after another text, and read like nonsense."""
    expected = engine.generate("Once upon a time", 5)
    with pytest.raises(ConfigError, match="a callback must leave it alone"):
        engine.generate("Once upon a time", 5, lambda _: call(engine))
    assert engine.generate("Once upon a time", 5, lambda _: engine.embed("Lily")) == expected


def test_paths_may_be_paths(stories: Path) -> None:
    engine = InferenceEngine(InferenceConfig(model_path=stories))  # type: ignore[arg-type]
    engine.load_model()
    engine.generate("Once", 3)
    again = InferenceEngine.resume(engine.snapshot(), stories)  # type: ignore[arg-type]
    assert InferenceEngine.snapshot_info(again.snapshot()).config.model_path == str(stories)
    pair = SpeculativeEngine(stories, stories)
    assert pair.generate("Once", 3) == engine.generate("Once", 3)
    assert SpeculativeEngine.resume(pair.snapshot(), stories, stories).tokens == pair.tokens  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="model_path is 5, but it must be the path"):
        InferenceConfig(model_path=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="prompt is 5, but it must be a text"):
        pair.generate(5, 3)  # type: ignore[arg-type]


def test_bytes_may_be_any_and_a_text_is_one(engine: InferenceEngine, stories: Path) -> None:
    other = InferenceEngine(InferenceConfig())
    other.load_model_from_bytes(bytearray(stories.read_bytes()))
    assert other.generate("Once", 5) == engine.generate("Once", 5)
    assert engine.embed_batch("Once") == [engine.embed("Once")]  # not one for each letter


def test_tokens_may_be_an_array(engine: InferenceEngine) -> None:
    tokens = engine.tokenize("Once upon a time")
    engine.truncate(0)
    expected = engine.forward_prefill(tokens, 0).copy()
    engine.truncate(0)
    np.testing.assert_array_equal(engine.forward_prefill(np.array(tokens), 0), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("swapped_out", [False, True], ids=["fed", "copied"])
def test_an_interrupted_text_is_empty(engine: InferenceEngine, swapped_out: bool) -> None:
    """It may come when tokens are scheduled and not computed: others after them would see what is not there."""
    engine.truncate(0)
    engine.prefill([1, 2, 3])
    scheduler = engine._model.engine.scheduler
    schedule = scheduler.schedule
    if swapped_out:
        assert scheduler._swap_one_out(), "it is computed again when it is copied"

    def interrupted() -> None:
        schedule()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(scheduler, "schedule", interrupted)
        engine.kv_snapshot() if swapped_out else engine.forward_one(5)
    after, n = engine.forward_one(6).copy(), engine.kv_cache_seq_len()
    engine.truncate(0)
    np.testing.assert_array_equal(after, engine.forward_one(6))
    assert n == 1


@pytest.mark.parametrize("free_bytes", [1000, 10**6])
def test_a_model_that_does_not_fit_is_refused_before_it_is_read(
    stories: Path, free_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuBackend, "free_bytes", lambda self: free_bytes)
    monkeypatch.setattr(builder, "load", None)
    config = InferenceConfig(str(stories), num_threads=1)
    for loading in (InferenceEngine(config).load_model, lambda: SpeculativeEngine(config, str(stories), 2)):
        with pytest.raises(LoadError, match="needs more memory than is free"):
            loading()
