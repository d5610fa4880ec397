"""The collector runs rarely while an engine works, at times not at all, and as the program wants it afterwards."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tahr import LLM, SamplingParams
from tahr.collector import N_NEW_OBJECTS, Collector
from tahr.errors import TahrError
from tahr.generation.outputs import Request


@pytest.fixture(autouse=True)
def _own_threshold() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(123, 5, 5)
    yield
    gc.set_threshold(*before)


def test_the_last_of_several_holders_puts_the_threshold_back() -> None:
    collector, first, second = Collector(), ExitStack(), ExitStack()
    first.enter_context(collector.rare())
    second.enter_context(collector.rare())
    first.close()
    assert gc.get_threshold()[0] == N_NEW_OBJECTS
    second.close()
    assert gc.get_threshold() == (123, 5, 5)


@pytest.mark.parametrize("own", [0, N_NEW_OBJECTS + 1])
def test_a_program_that_collects_less_keeps_its_threshold(own: int) -> None:
    gc.set_threshold(own)
    with Collector().rare():
        assert gc.get_threshold()[0] == own
    assert gc.get_threshold()[0] == own


@pytest.mark.parametrize("was_on", [True, False])
def test_nothing_is_collected_until_the_last_holder_leaves(was_on: bool) -> None:
    collector, first, second = Collector(), ExitStack(), ExitStack()
    (gc.enable if was_on else gc.disable)()
    try:
        first.enter_context(collector.off())
        second.enter_context(collector.off())
        first.close()
        assert not gc.isenabled()
        second.close()
        assert gc.isenabled() == was_on
    finally:
        gc.enable()


def test_a_model_that_cannot_be_opened_leaves_the_collector_on(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(TahrError):
        LLM(tmp_path / "model.gguf")
    assert gc.isenabled()


def test_a_batch_is_generated_with_few_collections(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm, seen = LLM(stories), set()
    step = llm.step

    def watched() -> list[Request]:
        seen.add(gc.get_threshold()[0])
        return step()

    monkeypatch.setattr(llm, "step", watched)
    llm.generate(["Once", "Twice"], SamplingParams(max_tokens=2), progress=False)
    assert seen == {N_NEW_OBJECTS}
    assert gc.get_threshold() == (123, 5, 5)
