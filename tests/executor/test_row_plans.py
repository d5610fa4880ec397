"""Plans that read rows, and those of the same model that do not: what is recorded, and what steps give."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends_here import NAMES, backend
from echo_executor import EchoExecutor
from model_runs import Runs
from tahr.backends.api import Backend, Extras
from tahr.executor.local import LocalExecutor
from tahr.executor.output import Output
from tahr.executor.protocol import RowFacts, StepRequest
from tahr.models.loader.load import Loaded, load, open_model

PART = (0, [5, 9, 3, 3, 3, 7])  # the third to the fifth are placeholders
EXTRAS = int(Extras.ROWS)


@pytest.fixture(params=[name for name in NAMES if name != "cuda"])
def model(request: pytest.FixtureRequest, stories: Path) -> tuple[Loaded, Backend]:
    be = backend(request.param)
    return load(open_model([stories]), be), be


def executor_of(loaded: Loaded, be: Backend, kind: type[LocalExecutor] = LocalExecutor) -> LocalExecutor:
    runs = Runs(loaded, be)
    limits = replace(runs.limits, extras=EXTRAS)
    return kind(be, loaded.decoder, runs.kv, limits, rows=be.row_store(6, loaded.decoder.config.width))


def logits(executor: LocalExecutor, loaded: Loaded, row_of: list[int] | None) -> np.ndarray:
    """Those of every token."""
    inputs = executor.inputs()
    Runs(loaded, executor.backend).fill(inputs, [PART])
    inputs.row_of[: len(PART[1])] = row_of or 77
    extras = EXTRAS if row_of else 0
    step = StepRequest(1, 0, Output.LOGITS, 0, wants_rows=True, extras=extras)
    rows = executor.collect(executor.launch(step)).rows
    assert rows is not None
    return np.array(rows)


@pytest.mark.parametrize("kind", [LocalExecutor, EchoExecutor])
def test_rows_stand_in_place_of_embeddings(model: tuple[Loaded, Backend], kind: type[LocalExecutor]) -> None:
    """Rows that are embeddings change nothing; others change what is behind them, and no plan without rows."""
    loaded, be = model
    plain = logits(executor_of(loaded, be), loaded, None)
    executor = executor_of(loaded, be, kind)
    runs = Runs(loaded, be)
    step = be.step_inputs(runs.limits)
    runs.fill(step, [PART])
    embedded = np.array(be.read(loaded.decoder.embedding(be, step)))
    executor.put_rows([4, 0, 2], embedded[2:5])
    same = [-1, -1, 4, 0, 2, -1]
    np.testing.assert_array_equal(logits(executor, loaded, same), plain)
    executor.put_rows([0], np.ones((1, loaded.decoder.config.width), np.float32))
    other = logits(executor, loaded, same)
    np.testing.assert_array_equal(other[:3], plain[:3])
    assert (other[3:] != plain[3:]).any(axis=1).all()
    np.testing.assert_array_equal(logits(executor, loaded, None), plain)
    assert [key[3] for key in executor.executed[0].plans] == [EXTRAS, 0]


def test_a_step_without_rows_records_the_ops_of_a_model_without_them(
    model: tuple[Loaded, Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, be = model
    seen: list[str] = []

    def noting(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            seen.append(name)
            return op(*args, **options)

        return noted

    def ops_of(executor: LocalExecutor, row_of: list[int] | None) -> list[str]:
        seen.clear()
        logits(executor, loaded, row_of)
        return list(seen)

    for name in ("embed", "with_rows", "linear", "linears", "add_rms_norm", "rms_norm", "cos_sin", "attention", "add"):
        monkeypatch.setattr(be, name, noting(name, getattr(be, name)))
    plain = LocalExecutor(be, loaded.decoder, Runs(loaded, be).kv, Runs(loaded, be).limits)
    wanted = ops_of(plain, None)
    executor = executor_of(loaded, be)
    assert ops_of(executor, None) == wanted and "embed" in wanted
    assert [name for name in ops_of(executor, [-1] * 6) if name != "with_rows"] == wanted
    assert seen.count("with_rows") == 1


def test_rows_are_put_where_a_model_reads_them_alone(model: tuple[Loaded, Backend]) -> None:
    loaded, be = model
    plain = LocalExecutor(be, loaded.decoder, Runs(loaded, be).kv, Runs(loaded, be).limits)
    assert plain.models[0].rows.n_slots == 0
    assert executor_of(loaded, be).models[0].rows == RowFacts(6, loaded.decoder.config.width)
    with pytest.raises(AssertionError, match="reads no rows"):
        plain.put_rows([0], np.zeros((1, 4), np.float32))
