"""Embeddings: pooling by hand, independence, and the same numbers from every backend."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tahr import InferenceConfig, InferenceEngine, Pooling
from tahr.errors import ConfigError
from tahr.library.embeddings import Pooler, normalized, pool
from tahr.library.inference.loaded_model import N_SEQS

STATES = np.array([[3, 0, 4], [0, 2, 0], [0, 0, -5]], np.float32)
TEXTS = ["Once upon a time", "the dog", "a", "The sun was shining. " * 60, "She loved to play"]


@pytest.mark.parametrize(
    ("pooling", "vector"),
    [("last", [0, 0, -1]), ("cls", [0.6, 0, 0.8]), ("max", [3, 2, 4]), ("mean", [3, 2, -1])],
)
def test_pooling(pooling: str, vector: list[float]) -> None:
    expected = np.array(vector) / np.linalg.norm(vector)
    np.testing.assert_allclose(pool(STATES, pooling), expected, atol=1e-6)
    np.testing.assert_allclose(pool(STATES, Pooling(pooling)), expected, atol=1e-6)


def test_pooling_refuses() -> None:
    with pytest.raises(ConfigError, match="without tokens"):
        pool(STATES[:0])
    with pytest.raises(ConfigError, match="last, mean, max, cls"):
        pool(STATES, "median")
    np.testing.assert_array_equal(pool(np.zeros((2, 3), np.float32)), [0, 0, 0])  # no division by zero


@pytest.mark.parametrize("pooling", list(Pooling))
def test_states_may_come_in_chunks(pooling: Pooling) -> None:
    states = np.random.default_rng(0).standard_normal((300, 24)).astype(np.float32)
    pooler = Pooler(pooling)
    for begin in (0, 1, 7, 200):
        pooler(states[begin : {0: 1, 1: 7, 7: 200, 200: 300}[begin]])
    vector = normalized(pooler.pooled()[None])[0]
    np.testing.assert_array_equal(vector, pool(states, pooling))
    if pooling is Pooling.MEAN:
        mean = states.mean(axis=0)
        np.testing.assert_array_equal(vector, (mean / float(np.linalg.norm(mean))).astype(np.float32))


@pytest.fixture(scope="module")
def engine(stories: Path) -> InferenceEngine:
    engine = InferenceEngine(InferenceConfig(str(stories), num_threads=2))
    engine.load_model()
    return engine


def test_length_and_norm(engine: InferenceEngine) -> None:
    vector = engine.embed(TEXTS[0])
    assert len(vector) == engine.hidden_size
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("pooling", list(Pooling))
def test_batch_is_each_alone(engine: InferenceEngine, pooling: Pooling) -> None:
    texts = [text if len(text) < 500 else text[:480] for text in TEXTS]
    alone = [engine.embed_with(text, pooling) for text in texts]
    assert engine.embed_batch(texts, pooling) == alone
    assert engine.embed_batch(texts[::-1], pooling) == alone[::-1]
    np.testing.assert_array_equal(engine.embed_numpy(texts, pooling), np.array(alone, np.float32))


def test_many_texts(engine: InferenceEngine) -> None:
    texts = [f"story {i}" for i in range(3 * N_SEQS)]
    vectors = engine.embed_numpy(texts)
    assert vectors.shape == (len(texts), 64)
    np.testing.assert_array_equal(vectors[70], engine.embed_numpy([texts[70]])[0])
    assert engine.embed_numpy([]).shape == (0, 64)


def test_the_text_in_memory_stays(engine: InferenceEngine) -> None:
    expected = engine.generate("Once upon a time", 10)
    engine.truncate(0)
    logits = engine.forward_prefill(engine.tokenize("Once upon a time"), 0)
    engine.embed("Something else entirely")
    assert engine.generate_with_logits(engine.tokenize("Once upon a time"), logits, 10) == expected


def test_the_reference_agrees(engine: InferenceEngine, stories: Path) -> None:
    oracle = InferenceEngine(InferenceConfig(str(stories), num_threads=None, backend="reference"))
    oracle.load_model()
    for pooling in Pooling:
        np.testing.assert_allclose(
            engine.embed_numpy(TEXTS[:3], pooling), oracle.embed_numpy(TEXTS[:3], pooling), atol=2e-3
        )


def test_a_long_text_goes_in_chunks(engine: InferenceEngine) -> None:
    text = "The dog ran. " * 30
    whole = engine.embed_with(text, "mean")
    other = InferenceEngine(replace(engine.config, prefill_chunk_size=16))
    other.load_model()
    np.testing.assert_allclose(other.embed_with(text, "mean"), whole, atol=1e-4)


def test_refusals(engine: InferenceEngine) -> None:
    with pytest.raises(ConfigError, match="context holds 512"):
        engine.embed("dog " * 1000)
    with pytest.raises(ConfigError, match="pooling"):
        engine.embed_with("dog", "median")
