"""Whisper, as tiny random models: rows, logits and tokens equal those of transformers."""

from dataclasses import replace

import numpy as np
import pytest

import backends_here
from backends_here import NAMES
from speech_cases import CASES, FIXTURES, N_NEW, PROMPT, frames_of
from speech_runs import Greedy, checkpoint, engine_of, loaded_on, recording, run
from tahr.backends.api import Backend, Extras
from tahr.engine.sequences.prompt_rows import RowSource, rows_of_input
from tahr.engine.step.row_steps import EXTRAS, TowerBatch
from tahr.errors import ConfigError, UnsupportedModel
from tahr.executor.protocol import TOWER, StepRequest
from tahr.models.loader import load, open_model
from tahr.speech.audio.rows import input_rows

TOLERANCE = 2e-4
RUNS = [name for name in NAMES if name in ("reference", "cpu")]


def expected(case: str) -> dict[str, np.ndarray]:
    return dict(np.load(FIXTURES / f"{case}.npz"))


def encoded(case: str, name: str) -> np.ndarray:
    """The rows of the encoder's last part."""
    engine = engine_of(case, name)
    facts = engine.tower_facts
    assert facts
    batch = TowerBatch(engine.executor, facts)
    source = next(iter(recording(case).sources.values()))
    batch.begin([source])
    places = list(range(len(source.values)))
    for _ in range(facts.n_parts - 1):
        batch.run_part([places])
    engine.executor.inputs(TOWER).row_target[: len(places)] = places
    last = facts.n_parts - 1
    request = StepRequest(0, TOWER, last, len(facts.buckets[last]) - 1, wants_rows=True, extras=EXTRAS)
    rows = engine.executor.collect(engine.executor.launch(request)).rows
    assert rows is not None
    return rows[: len(places)]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("case", CASES)
def test_the_encoder_equals_that_of_transformers(case: str, name: str) -> None:
    assert not [line for line in loaded_on(case, name).log if line.startswith("Not used")]
    assert np.abs(encoded(case, name) - expected(case)["rows"]).max() <= TOLERANCE


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("case", CASES)
def test_logits_and_tokens_equal_those_of_transformers(case: str, name: str) -> None:
    """Recorded plans, on the cpu backend; the reference runs each op where it is called."""
    engine = engine_of(case, name)
    text = Greedy(engine, PROMPT, recording(case), N_NEW)
    run(engine, text)
    wanted = expected(case)
    assert text.tokens == wanted["tokens"].tolist()
    assert np.abs(np.stack(text.logits) - wanted["logits"]).max() <= TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_a_recording_alone_gives_the_bits_that_it_gives_beside_others(case: str) -> None:
    def logits_of(seeds: list[int], **settings: object) -> dict[int, np.ndarray]:
        engine = engine_of(case, "cpu", **settings)
        texts = {seed: Greedy(engine, PROMPT, recording(case, seed), N_NEW) for seed in seeds}
        run(engine, *texts.values())
        assert engine.scheduler.rows
        engine.scheduler.rows.check()
        assert engine.snapshot().pages_used == 0
        return {seed: np.stack(text.logits) for seed, text in texts.items()}

    alone = {seed: logits_of([seed])[seed] for seed in (3, 4, 5)}
    assert not np.array_equal(alone[3], alone[4])
    for seeds, settings in (
        ([5, 4, 3], {}),
        ([3, 4, 5, 6, 7], {"max_batch_size": 2}),
        ([4, 3], {"prefill_chunk_size": 2}),
    ):
        found = logits_of(seeds, **settings)
        for seed in {3, 4, 5} & found.keys():
            np.testing.assert_array_equal(found[seed], alone[seed])


def test_texts_of_one_recording_share_its_rows() -> None:
    engine = engine_of("whisper", "cpu")
    texts = [Greedy(engine, [*PROMPT, i], recording("whisper"), N_NEW) for i in range(4)]
    run(engine, *texts)
    assert engine.scheduler.rows
    assert engine.scheduler.rows.slots.n_used == 1 and engine.scheduler.rows.slots.n_held == 0


def test_convolutions_as_linears_of_frames() -> None:
    """Beyond its ends a recording is silent before each convolution."""
    rows = input_rows(frames_of("whisper"))
    n_bins = CASES["whisper"]["num_mel_bins"]
    assert rows.shape == (CASES["whisper"]["max_source_positions"], 5 * n_bins + 1)
    assert not rows[0, : 2 * n_bins].any() and rows[0, -1] == 1
    assert not rows[-1, 4 * n_bins : 5 * n_bins].any() and not rows[1:, -1].any()


def test_texts_without_a_recording_are_refused() -> None:
    engine = engine_of("whisper", "cpu")
    with pytest.raises(ConfigError, match="writes down recordings"):
        engine.submit_rows(PROMPT, lambda rows: None)
    rows = recording("whisper")
    with pytest.raises(ConfigError, match="writes down recordings"):
        engine.submit_rows(PROMPT, lambda rows: None, rows=replace(rows, seen_by_all=False))
    source = RowSource(next(iter(rows.sources.values())).values[:-1])
    with pytest.raises(ConfigError, match="must give 40 rows"):
        engine.submit_rows(PROMPT, lambda rows: None, rows=rows_of_input(bytes(16), source))
    assert not engine.busy


def test_backends_that_store_no_rows_refuse_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends_here.ReferenceBackend, "stores_cross", False)
    backend: Backend = backends_here.backend("reference")
    with pytest.raises(UnsupportedModel, match="which the reference backend does not have"):
        load(open_model([], checkpoint("whisper")), backend)


def test_steps_of_tokens_have_no_extras() -> None:
    engine = engine_of("whisper", "cpu")
    assert not engine.executor.inputs().limits.extras & Extras.ROWS
