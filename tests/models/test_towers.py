"""Models that embed images and texts, as tiny random ones: their vectors equal those of transformers."""

from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import backends_here
from folders import new_folder
from model_files import write_hf
from tahr.backends.api import Backend
from tahr.backends.cpu.queue import CpuPlan
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.errors import ConfigError, GenerateError
from tahr.executor.local import LocalExecutor
from tahr.executor.protocol import TOWER, StepRequest
from tahr.library.embeddings import EmbeddingJob, EmbeddingOptions, Item, embed
from tahr.library.inputs.image_inputs import ImageRows, whole_image
from tahr.loading.builder import build_engine
from tahr.models.loader import Loaded, load, open_model
from tahr.models.parts import tower
from vision_cases import CASES, FIXTURES, make_weights, texts
from vision_rows import rows_of

TOLERANCE = 1e-4
RAW = EmbeddingOptions(normalize=False)


@cache
def loaded_on(case: str, name: str) -> Loaded:
    return load(open_model([], checkpoint(case)), backends_here.backend(name, deterministic=True))


@cache
def checkpoint(case: str) -> Path:
    return write_hf(new_folder("vision"), CASES[case], make_weights(case))


def engine_of(case: str, name: str) -> Engine:
    backend: Backend = backends_here.backend(name, deterministic=True)
    decoder = loaded_on(case, name).decoder
    return build_engine(backend, decoder, EngineConfig(page_size=8, kv_dtype="f32"))[0]


def images(case: str, name: str) -> list[ImageRows]:
    vision = loaded_on(case, name).config.vision
    assert vision
    found = rows_of(case, vision)
    return [ImageRows(whole_image(rows), len(rows)) for rows in found]


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


# ---- a few layers at a time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_slices_of_one_layer_give_the_same_bits(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    items: list[Item] = [*images(case, "cpu"), *texts(case)]
    whole = embed(engine_of(case, "cpu"), items, RAW)
    monkeypatch.setattr(tower, "PART_PRODUCTS", 1)
    sliced = engine_of(case, "cpu")
    assert sliced.tower_facts and sliced.tower_facts.n_parts == CASES[case]["vision_config"]["num_hidden_layers"]
    np.testing.assert_array_equal(embed(sliced, items, RAW), whole)


def test_layers_that_are_done_in_a_tenth_of_a_second() -> None:
    assert tower.runs_of_layers(7, tower.PART_PRODUCTS // 3) == [range(3), range(3, 6), range(6, 7)]
    assert tower.runs_of_layers(2, 100 * tower.PART_PRODUCTS) == [range(1), range(1, 2)]


def test_a_tower_that_fails_takes_its_images_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tower, "PART_PRODUCTS", 1)
    engine = engine_of("clip", "cpu")
    launch = engine.executor.launch

    def broken(step: StepRequest) -> object:
        if step.model == TOWER and step.output == 1:
            raise RuntimeError("no kernel")
        return launch(step)

    monkeypatch.setattr(engine.executor, "launch", broken)
    with pytest.raises(GenerateError, match="no kernel"):
        embed(engine, list(images("clip", "cpu")), RAW)
    assert not engine.busy and np.isfinite(embed(engine, list(texts("clip")), RAW)).all()
    monkeypatch.setattr(engine.executor, "launch", launch)
    assert np.isfinite(embed(engine, list(images("clip", "cpu")), RAW)).all()


def test_images_that_nobody_waits_for_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand requests that are cancelled, each at another place, leave nothing behind."""
    monkeypatch.setattr(tower, "PART_PRODUCTS", 1)
    engine = engine_of("clip", "cpu")
    items = images("clip", "cpu")
    wanted = embed(engine, items[:1], RAW)
    launched: list[StepRequest] = []
    launch = engine.executor.launch
    monkeypatch.setattr(engine.executor, "launch", lambda step: (launched.append(step), launch(step))[1])
    for i in range(1000):
        job = EmbeddingJob(engine, items, RAW)
        for _ in range(i % 3):
            engine.step()
        job.abort()
        assert not engine.busy
    assert len(launched) == 1000 - 1  # the steps above: no part is run for what was cancelled
    assert embed(engine, items[:1], RAW).tobytes() == wanted.tobytes() and not engine.busy
    assert engine.scheduler.rows and not engine.scheduler.rows.n_waiting and engine.snapshot().pages_used == 0


def test_rows_that_a_tower_cannot_read_are_refused() -> None:
    engine = engine_of("clip", "reference")
    (image, *_) = images("clip", "reference")
    for values in (image.source.values[:, :5], image.source.values * np.nan, image.source.values.astype(np.float64)):
        with pytest.raises(ConfigError, match="numbers"):
            engine.submit_image(whole_image(values), lambda _: None)
    assert not engine.busy


def test_parts_share_the_memory_of_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but their results: otherwise a large image would take the memory of a step once for each part."""
    monkeypatch.setattr(tower, "PART_PRODUCTS", 1)
    engine = engine_of("clip_gelu", "cpu")
    embed(engine, list(images("clip_gelu", "cpu")), RAW)
    assert isinstance(engine.executor, LocalExecutor)
    plans = [cast(CpuPlan, plan) for plan in engine.executor.executed[TOWER].plans.values()]
    assert len(plans) == 3 and len({id(plan._queue.arena) for plan in plans}) == 1
    assert len({plan.result.data.address for plan in plans}) == 3
