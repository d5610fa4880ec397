"""Models that embed images and texts, as tiny random ones: their vectors equal those of transformers."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import backends_here
from model_files import write_hf
from tahr.backends.api import Backend
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.library.embeddings import EmbeddingOptions, Item, embed
from tahr.library.inputs.image_inputs import ImageRows
from tahr.loading.builder import build_engine
from tahr.models.loader import Loaded, load, open_model
from vision_cases import CASES, FIXTURES, make_weights, texts
from vision_rows import rows_of

TOLERANCE = 1e-4
RAW = EmbeddingOptions(normalize=False)


@cache
def loaded_on(case: str, name: str) -> Loaded:
    return load(open_model([], checkpoint(case)), backends_here.backend(name, deterministic=True))


@cache
def checkpoint(case: str) -> Path:
    import tempfile

    return write_hf(Path(tempfile.mkdtemp(prefix="tahr-vision-")), CASES[case], make_weights(case))


def engine_of(case: str, name: str) -> Engine:
    backend: Backend = backends_here.backend(name, deterministic=True)
    decoder = loaded_on(case, name).decoder
    return build_engine(backend, decoder, EngineConfig(page_size=8))[0]


def images(case: str, name: str) -> list[ImageRows]:
    vision = loaded_on(case, name).config.vision
    assert vision
    found = rows_of(case, vision)
    return [ImageRows(rows, len(rows)) for rows in found]


def expected(case: str, what: str) -> np.ndarray:
    found: np.ndarray = np.load(FIXTURES / f"{case}.npz")[what]
    return found


@pytest.mark.parametrize("name", backends_here.NAMES)
@pytest.mark.parametrize("case", CASES)
def test_vectors_equal_those_of_transformers(case: str, name: str) -> None:
    assert not [line for line in loaded_on(case, name).log if line.startswith("Not used")]
    items: list[Item] = [*texts(case), *images(case, name)]
    found = embed(engine_of(case, name), items, RAW)
    wanted = np.concatenate([expected(case, "texts"), expected(case, "images")])
    assert np.abs(found - wanted).max() <= TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_a_batch_is_each_alone(case: str) -> None:
    """Bit for bit, whatever shares the steps."""
    items: list[Item] = [*texts(case), *images(case, "cpu")]
    alone = np.concatenate([embed(engine_of(case, "cpu"), [item], RAW) for item in items])
    shared = engine_of(case, "cpu")
    np.testing.assert_array_equal(embed(shared, items[::-1] * 8, RAW), np.concatenate([alone[::-1]] * 8))
    np.testing.assert_array_equal(embed(shared, items, RAW), alone)
    assert not shared.busy and shared.snapshot().pages_used == 0
