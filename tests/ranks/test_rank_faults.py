"""Ranks that end or stand still: texts go on, nothing is left over, and after too many failures a model says so."""

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lora_files import peft_tensors, write_peft
from rank_groups import group_of, is_there, opened
from tahr import LLM, SamplingParams
from tahr.engine import sleeping
from tahr.errors import ConfigError, ExecutorLost, GenerateError, LoadError
from tahr.executor.ranks import group as group_module
from tahr.executor.ranks import handshake, watch
from tahr.executor.ranks.messages import RankMessage
from tahr.executor.ranks.watch import Failures, StepWatch

TEXTS = [f"Once upon a time there were {i} dogs" for i in range(6)]
PARAMS = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
DRIVER = Path(__file__).parents[1] / "helpers" / "group_driver.py"
MOST_LOOKS = 400


@pytest.fixture(scope="module")
def wanted(stories: Path) -> Iterator[LLM]:
    with opened(stories, virtual_ranks=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def shared(stories: Path) -> Iterator[LLM]:
    with opened(stories, tensor_parallel=2) as llm:
        yield llm


@pytest.fixture(autouse=True)
def many_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_FAILURES", 1000)
    monkeypatch.setattr(watch, "BACKOFF_S", (0.0,) * 1000)


def told(llm: LLM, params: SamplingParams = PARAMS) -> list[str]:
    return [found.text for found in llm.generate(TEXTS, params)]


def after_steps(llm: LLM, n: int, monkeypatch: pytest.MonkeyPatch, fault: Callable[[], object]) -> None:
    """Something happens before a step."""
    executor = llm.engine.executor
    launch = executor.launch
    left = [n]

    def counted(step: object) -> object:
        left[0] -= 1
        if left[0] == 0:
            fault()
        return launch(step)  # type: ignore[arg-type]

    monkeypatch.setattr(executor, "launch", counted)


def all_gone(pids: list[int]) -> bool:
    for _ in range(MOST_LOOKS):
        if not any(map(is_there, pids)):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("rank", [0, 1])
def test_texts_go_on_when_a_rank_was_killed(
    rank: int, wanted: LLM, shared: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = group_of(shared).pids
    after_steps(shared, 9, monkeypatch, lambda: os.kill(group_of(shared).pids[rank], signal.SIGKILL))
    with caplog.at_level(logging.WARNING):
        assert told(shared) == told(wanted)
    assert f"rank {rank} ended (SIGKILL)" in caplog.text
    assert not set(before) & set(group_of(shared).pids)
    assert all_gone(list(before))


def test_texts_go_on_when_a_rank_stood_still(
    wanted: LLM, shared: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told(shared)  # it is known by now how long steps take
    monkeypatch.setattr(watch, "LEAST_S", 1.0)
    monkeypatch.setattr(watch, "PATIENCE", 0)
    monkeypatch.setattr(watch, "FIRST_S", 1.0)
    before = group_of(shared).pids
    after_steps(shared, 9, monkeypatch, lambda: os.kill(before[1], signal.SIGSTOP))
    with caplog.at_level(logging.WARNING):
        assert told(shared) == told(wanted)
    assert "Rank 1 did not come to the end of its step in time." in caplog.text
    assert all_gone(list(before))


@pytest.mark.full
@pytest.mark.parametrize("turn", range(20))
def test_sixteen_texts_go_on_whenever_a_rank_is_killed(
    turn: int, wanted: LLM, shared: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(turn)
    texts = [f"Once upon a time there were {i} cats" for i in range(16)]
    rank, fault = rng.randrange(2), rng.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
    after_steps(shared, rng.randrange(1, 40), monkeypatch, lambda: os.kill(group_of(shared).pids[rank], fault))
    found = [[reply.text for reply in llm.generate(texts, PARAMS)] for llm in (wanted, shared)]
    assert found[0] == found[1]


def test_systems_without_what_ranks_need_are_refused(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ConfigError, match=r"which Linux has from 5\.3 on"):
        opened(stories, tensor_parallel=2)


def test_a_rank_that_ended_while_nothing_was_to_do(wanted: LLM, shared: LLM) -> None:
    pids = group_of(shared).pids
    os.kill(pids[1], signal.SIGKILL)
    assert all_gone(list(pids))  # the others are of no use without it
    assert told(shared) == told(wanted)


def test_garbage_in_place_of_a_message(wanted: LLM, shared: LLM, caplog: pytest.LogCaptureFixture) -> None:
    """Ranks refuse it by an answer, and the next step is computed."""
    group = group_of(shared)
    for message in (RankMessage(2, (1, 2, 3)), RankMessage(99, ()), RankMessage(3, (1,))):
        with pytest.raises(GenerateError):
            group.call(message, 30.0, "step")
    assert told(shared) == told(wanted)


def test_an_answer_that_is_none(wanted: LLM, shared: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of(shared)
    group.call(RankMessage(4, (1,)), 30.0, "step")
    group.region.reply(1)[:] = 0xFF
    with pytest.raises(ExecutorLost, match="Rank 1 answered what is no answer"):
        group.wait(30.0)
    monkeypatch.setattr(group, "_is_answered", True)
    assert told(shared) == told(wanted)


def test_choices_grammars_and_adapters_go_on(
    wanted: LLM, shared: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tahr.grammar import Grammar

    linears = dict(wanted.engine.executor.decoder.targets)  # type: ignore[attr-defined]
    path = write_peft(tmp_path / "mine", peft_tensors(linears, 4, seed=1, strength=0.3), r=4)
    params = replace(PARAMS, lora="mine", n=2, temperature=1.0, seed=3, grammar=Grammar("regex", "[0-9 ]{30,40}"))
    for llm in (wanted, shared):
        llm.add_lora("mine", path)
    texts = told(wanted, params)
    after_steps(shared, 5, monkeypatch, lambda: os.kill(group_of(shared).pids[0], signal.SIGKILL))
    assert told(shared, params) == texts
    for llm in (wanted, shared):
        llm.remove_lora("mine")


def test_ranks_end_when_their_model_sleeps(wanted: LLM, shared: LLM) -> None:
    pids = group_of(shared).pids
    assert sleeping.sleep(shared.engine) > 0
    assert all_gone(list(pids))
    sleeping.wake(shared.engine)
    assert told(shared) == told(wanted)


def test_vectors_go_on(wanted: LLM, shared: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = wanted.embed(TEXTS, "mean")
    after_steps(shared, 1, monkeypatch, lambda: os.kill(group_of(shared).pids[0], signal.SIGKILL))
    assert (shared.embed(TEXTS, "mean") == vectors).all()


def test_after_too_many_failures_the_model_says_why(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_FAILURES", 2)
    with opened(stories, tensor_parallel=2) as llm:
        executor = llm.engine.executor
        launch = executor.launch

        def killing(step: object) -> object:
            os.kill(group_of(llm).pids[0], signal.SIGKILL)
            return launch(step)  # type: ignore[arg-type]

        monkeypatch.setattr(executor, "launch", killing)
        for _ in range(2):
            with pytest.raises(GenerateError, match=r"lost its ranks 2 times: .* rank 0 ended \(SIGKILL\)"):
                llm.generate(TEXTS[:2], PARAMS)
            monkeypatch.setattr(executor, "launch", launch)
        assert executor.fault
        assert not llm.engine.busy


def test_a_rank_that_never_comes_is_named(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "HELLO_S", 0.01)
    with pytest.raises(LoadError, match=r"Rank [01] did not come to the end of its start in time\."):
        opened(stories, tensor_parallel=2)


def test_ranks_that_are_not_alike_are_refused(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = handshake.hello_of
    monkeypatch.setattr(handshake, "hello_of", lambda *of: {**real(*of), "files": "others"})
    with pytest.raises(LoadError, match=r"Rank 0 reads other files: they were changed while the model was loaded"):
        opened(stories, tensor_parallel=2)
    wanted = dict.fromkeys(handshake.ALIKE, "one")
    handshake.check_hello(1, wanted, wanted)
    for name in handshake.ALIKE:
        for other in ({**wanted, name: "other"}, {each: "one" for each in wanted if each != name}):
            with pytest.raises(LoadError, match=f"Rank 1 .*{handshake.ALIKE[name][-10:]}"):
                handshake.check_hello(1, other, wanted)


@pytest.mark.parametrize("stops", [False, True], ids=["running", "stopped"])
def test_no_rank_outlives_its_driver(stops: bool, stories: Path) -> None:
    """Not even one that stands still when the driver is killed."""
    before = set(Path("/dev/shm").iterdir())
    driver = subprocess.Popen(
        [sys.executable, str(DRIVER), str(stories)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert driver.stdout
    pids = json.loads(driver.stdout.readline())
    assert len(pids) == 2
    if stops:
        os.kill(pids[1], signal.SIGSTOP)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pids[0], each)  # a terminal's and a service's signals are the driver's business
    assert is_there(pids[0])
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert all_gone(pids)
    assert set(Path("/dev/shm").iterdir()) == before


# ---- limits -------------------------------------------------------------------------------------------------


def test_a_step_may_take_ten_times_what_is_expected_and_ten_seconds() -> None:
    steps = StepWatch(10**9)
    assert steps.limit_s(512) >= watch.FIRST_S + 51
    steps.took(512, 5.0)
    assert steps.limit_s(512) == pytest.approx(50.0)
    assert steps.limit_s(1) == pytest.approx(50.0)
    for _ in range(200):
        steps.took(1, 0.01)
    assert steps.limit_s(1) == watch.LEAST_S


def test_failures_that_lie_far_apart_are_no_reason_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_FAILURES", 3)
    failures = Failures()
    assert [failures.count(at) is None for at in (0, 10, 700, 710, 720)] == [False, False, False, False, True]
