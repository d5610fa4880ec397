"""Steps prepared while an engine is idle: they leave no trace, end, and make no request wait for more than one."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engines import alone, engine, greedy, here, loaded, run, submit
from tahr import AsyncLLM, EngineConfig, SamplingParams
from tahr.backends.api import Backend, LoraBank, Plan, StepInputs, StepLimits, Tensor
from tahr.engine.engine import Engine
from tahr.engine.step.sizes import MOST_FALLBACKS, N_FIRST_RUNS, warming_order
from tahr.executor.output import Output
from tahr.executor.protocol import StepRequest
from tahr.loading.builder import build_engine
from tahr.loading.speculation import Draft
from tahr.server.models import idle_warming
from tahr.server.models.idle_warming import IdleWarming, warm_next
from tahr.server.models.llm_engine import LlmEngine
from test_engine import prompts
from toy_state_space import ToyBackend, toy
from warming_runs import MOST_RUNS, facts_of, memory_of, set_buckets, warm_all


class ColdPlan:
    """Notes on how many tokens it runs."""

    def __init__(self, plan: Plan, inputs: StepInputs):
        self._plan, self._inputs = plan, inputs
        self.n_tokens: list[int] = []

    @property
    def result(self) -> Tensor:
        return self._plan.result

    def run(self) -> None:
        self.n_tokens.append(self._inputs.n_tokens)
        self._plan.run()


class ColdBackend:
    """A backend with plans for several sizes, whose first runs are slow, they say."""

    def __init__(self, inner: Backend):
        self._inner = inner
        self.plans: list[ColdPlan] = []
        self.has_room = True
        self.n_looks: dict[int, int] = {}  # by plan: how often it is asked for before it is prepared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def buckets(self, limits: StepLimits, n_decode_tokens: int = 1) -> list[StepLimits]:
        return [replace(limits, n_tokens=n, n_rows=n, n_seqs=min(n, limits.n_seqs)) for n in (1, 2, 16)] + [limits]

    def wants_warming(self) -> bool:
        return self.has_room

    def prepare(self, plan: Plan) -> bool:
        n_left = self.n_looks.get(id(plan), 0)
        self.n_looks[id(plan)] = n_left - 1
        return n_left <= 0

    def record(self, step: Callable[[], Tensor], inputs: StepInputs) -> ColdPlan:
        self.plans.append(ColdPlan(self._inner.record(step, inputs), inputs))
        return self.plans[-1]


def cold_engine(path: Path, **options: Any) -> tuple[Engine, ColdBackend]:
    device = ColdBackend(here())
    config = EngineConfig(context_size=256, page_size=8, prefill_chunk_size=16)
    return build_engine(device, loaded(path)[0].decoder, config, **options)[0], device  # type: ignore[arg-type]


def test_every_plan_makes_its_first_runs_on_no_tokens(stories: Path) -> None:
    eng, device = cold_engine(stories)
    assert warm_all(eng) == N_FIRST_RUNS * 4
    assert [plan.n_tokens for plan in device.plans] == [[0] * N_FIRST_RUNS] * 4
    sizes = [plan._inputs.limits.n_tokens for plan in device.plans]
    assert sizes == [1, 16, 2, 32], "both ends come first, and last what has more rows than are sampled"


@pytest.mark.serial
def test_plans_run_as_soon_as_they_are_prepared(stories: Path) -> None:
    """Nobody waits for the kernels of one, neither a request nor the plans behind it."""
    eng, device = cold_engine(stories)
    model = eng.executor.executed[0]
    plans = [model.plan(device, (0, i, 0, 0)) for i in warming_order(eng.steps.sizes.buckets[0], 1)]  # type: ignore[arg-type]
    device.n_looks = {id(plans[0]): 3, id(plans[1]): 1}
    ran = []
    while len(ran) < 4:
        before = [len(plan.n_tokens) for plan in device.plans]
        assert warm_next(eng)
        ran += [i for i, plan in enumerate(device.plans) if len(plan.n_tokens) > before[i]]
    assert ran == [2, 1, 1, 0]
    device.n_looks = {id(plan): 10**9 for plan in device.plans}
    began = time.perf_counter()
    assert warm_next(eng) and time.perf_counter() - began < 1, "there is more, but not now"


def test_a_step_takes_a_larger_plan_while_only_that_is_warm(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a first run where a plan of a quarter more tokens will do; but not for ever."""
    eng, device = cold_engine(stories)
    sizes = (1, 8, 10, 16)
    buckets = tuple(replace(eng.steps.inputs.limits, n_tokens=n, n_rows=n, n_seqs=1) for n in sizes)
    set_buckets(eng, buckets, monkeypatch)
    for _ in range(N_FIRST_RUNS):
        eng.executor.warm(StepRequest(0, 0, Output.LOGITS, 2))
        eng.steps.sizes.ran((Output.LOGITS, 2, 0, 0))

    def sizes_run(prompt: list[int]) -> list[int]:
        seen = {plan._inputs.limits.n_tokens: len(plan.n_tokens) for plan in device.plans}
        assert run(eng, submit(eng, prompt, greedy(1))) == [alone(stories, prompt, greedy(1))]
        return [n for p in device.plans if len(p.n_tokens) > seen.get(n := p._inputs.limits.n_tokens, 0)]

    prompts_of = [[1, *range(5 + i, 12 + i)] for i in range(MOST_FALLBACKS + 3)]  # of eight tokens
    assert sizes_run([1, *range(40, 52)]) == [16], "a plan of ten does not hold thirteen"
    assert [sizes_run(prompt) for prompt in prompts_of] == [[10]] * MOST_FALLBACKS + [[8]] * 3


def test_warming_order_soon_has_every_size() -> None:
    largest = StepLimits(8448, 256, 256, 8)
    buckets = [replace(largest, n_tokens=n) for n in range(256, 8448, 256)] + [largest]
    order = [buckets[i] for i in warming_order(buckets, 1)]
    assert set(order) == set(buckets) and len(order) == len(buckets)
    first = sorted(each.n_tokens for each in list(order)[: len(buckets) // 4])
    assert first[0] == 256 and first[-1] == 8448
    assert max(b - a for a, b in pairwise(first)) <= 8 * 256


def test_a_plan_that_a_request_has_run_is_warm_already(stories: Path) -> None:
    eng, device = cold_engine(stories)
    run(eng, submit(eng, prompts(stories)[0], greedy(4)))
    n_runs = {plan._inputs.limits.n_tokens: len(plan.n_tokens) for plan in device.plans}
    assert n_runs[1] >= N_FIRST_RUNS
    assert warm_all(eng) == sum(max(0, N_FIRST_RUNS - n_runs.get(b.n_tokens, 0)) for b in eng.steps.sizes.buckets[0])


def test_warming_leaves_no_trace(stories: Path) -> None:
    eng, _ = cold_engine(stories)
    wanted = [alone(stories, prompt) for prompt in prompts(stories)]
    assert run(eng, *(submit(eng, prompt) for prompt in prompts(stories)[:2])) == wanted[:2]
    before = memory_of(eng), facts_of(eng)
    assert warm_all(eng) and (memory_of(eng), facts_of(eng)) == before
    assert run(eng, *(submit(eng, prompt) for prompt in prompts(stories))) == wanted
    assert eng.snapshot().prefix_tokens_reused > 0


def test_warming_between_steps_of_one_size_changes_no_token(stories: Path) -> None:
    """What a step writes of its inputs depends on what the last one wrote."""
    eng, _ = cold_engine(stories)
    seq, n_warmed = submit(eng, prompts(stories)[1]), 0
    while not seq.done:
        eng.step()
        n_warmed += warm_next(eng)
    assert n_warmed and seq.tokens[seq.n_prompt :] == alone(stories, prompts(stories)[1])


@pytest.mark.parametrize("is_hybrid", [False, True])
def test_states_stay_as_they_are(is_hybrid: bool) -> None:
    device = ColdBackend(ToyBackend())
    config = EngineConfig(context_size=64, page_size=4, kv_dtype="f32", prefill_chunk_size=16)
    eng = build_engine(device, toy(device, is_hybrid).decoder, config)[0]  # type: ignore[arg-type]
    seq, other = (submit(eng, [1, 5, 9, 2], greedy(8)) for _ in range(2))
    while not seq.n_generated:
        eng.step()
    before = memory_of(eng)
    assert any(any(each) for each in before) and warm_all(eng) and memory_of(eng) == before
    run(eng, seq, other)
    assert seq.tokens == other.tokens


def test_no_memory_ends_it(stories: Path) -> None:
    eng, device = cold_engine(stories)
    assert warm_next(eng)
    device.has_room = False
    assert not warm_next(eng)


def test_there_is_nothing_to_warm_where_plans_are_cheap(stories: Path) -> None:
    eng = engine(stories)
    assert not warm_next(eng) and not eng.executor.executed[0].plans


def test_an_encoder_warms_its_hidden_rows(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eng, _ = cold_engine(stories)
    monkeypatch.setattr(eng.steps, "facts", eng.steps.facts._replace(encoding=object()))
    assert warm_all(eng) == N_FIRST_RUNS * len(eng.steps.sizes.buckets[Output.HIDDEN])
    assert all(output == Output.HIDDEN for output, *_ in eng.executor.executed[0].plans)


def test_draft_models_are_warmed_too(stories: Path) -> None:
    eng, device = cold_engine(stories, draft=Draft("itself", loaded(stories)[0].decoder))
    assert warm_all(eng) == N_FIRST_RUNS * 8 and len(device.plans) == 8
    assert eng.speculator and not eng.speculator.proposer.warm_next()


def test_steps_with_adapters_are_adapted_last_and_leave_no_trace(stories: Path) -> None:
    eng, device = cold_engine(stories)
    wanted = alone(stories, prompts(stories)[0])
    assert run(eng, submit(eng, prompts(stories)[0])) == [wanted]
    warm_all(eng)
    n_plans, before = len(device.plans), (memory_of(eng), facts_of(eng))
    n_runs = next(n for n in range(MOST_RUNS) if not warm_next(eng))
    adapted = device.plans[n_plans:]
    assert n_runs == len(adapted) > 1 and all(plan.n_tokens == [0] for plan in adapted)
    assert (memory_of(eng), facts_of(eng)) == before and not eng.adapters.loaded() and not eng.executor.adapters.is_used
    assert run(eng, submit(eng, prompts(stories)[0])) == [wanted]


def test_a_adapted_step_adds_adapters_to_every_kind_of_linear(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eng, device = cold_engine(stories)
    banks: list[LoraBank] = []
    make = device._inner.lora_bank
    monkeypatch.setattr(device, "lora_bank", lambda *args: banks.append(make(*args)) or banks[-1], raising=False)
    assert eng.adapters.warm_next()
    [bank] = banks
    assert {name.rpartition(".")[2] for name in bank.targets} == {
        name.rpartition(".")[2] for name in eng.executor.decoder.linears if "layers" in name
    }
    n_layers = eng.executor.decoder.config.n_layers
    assert {int(name.split(".")[2]) for name in bank.targets} == {0, n_layers - 1}


# ---- when ---------------------------------------------------------------------------------------------------------


class ScriptedWarming:
    """An engine that has so many runs to make, or fails at one."""

    def __init__(self, n_left: int, fails_at: int = -1):
        self.n_left, self.fails_at, self.busy = n_left, fails_at, False
        self.steps, self.speculator = self, None

    def warm_next(self) -> bool:
        if self.n_left == self.fails_at:
            raise RuntimeError("out of order")
        self.n_left -= self.n_left > 0
        return self.n_left > 0


@pytest.fixture(autouse=True)
def no_other_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_warming, "ENGINES", idle_warming.WarmingEngines())


class Waits:
    """Waits for no work, but for the n-th time; notes for how long."""

    def __init__(self, work_at: int):
        self.work_at, self.seconds = work_at, list[float]()

    def __call__(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return len(self.seconds) == self.work_at


def test_it_waits_for_quiet_and_looks_for_work_after_every_run() -> None:
    eng, wait = ScriptedWarming(10), Waits(4)
    warming = IdleWarming(eng, "it")  # type: ignore[arg-type]
    assert warming.run(wait) and eng.n_left == 7 and not warming.finished
    assert wait.seconds == [idle_warming.QUIET_S, 0, 0, 0]
    assert not warming.run(Waits(-1)) and eng.n_left == 0 and warming.finished


def test_a_fault_ends_it_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    eng = ScriptedWarming(10, fails_at=5)
    with caplog.at_level(logging.WARNING):
        assert not IdleWarming(eng, "it").run(Waits(-1))  # type: ignore[arg-type]
    assert eng.n_left == 5 and len(caplog.records) == 1 and "it" in caplog.messages[0]


def test_an_engine_waits_while_another_has_work() -> None:
    eng, other, wait = ScriptedWarming(3), ScriptedWarming(0), Waits(3)
    warming = IdleWarming(eng, "it")  # type: ignore[arg-type]
    IdleWarming(other, "another")  # type: ignore[arg-type]
    other.busy = True
    assert warming.run(wait) and eng.n_left == 3 and wait.seconds == [idle_warming.QUIET_S] * 3
    other.busy = False
    assert not warming.run(Waits(-1))


# ---- behind a server ----------------------------------------------------------------------------------------------


class SlowRuns:
    """Runs of 20 ms each, far more than the test waits for."""

    def __init__(self) -> None:
        self.n, self.began = 0, threading.Event()

    def __call__(self) -> bool:
        self.n += 1
        self.began.set()
        time.sleep(0.02)
        return True


@pytest.mark.serial
def test_requests_come_first(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_warming, "QUIET_S", 0.01)
    params, runs = SamplingParams(temperature=0, max_tokens=20), SlowRuns()

    async def main() -> None:
        llm = AsyncLLM(str(stories), config=EngineConfig(n_threads=2))
        wanted = (await llm.generate("The dog", params)).text
        monkeypatch.setattr(llm.llm.engine.steps, "warm_next", runs)
        await asyncio.sleep(0.05)
        assert not runs.n, "a library does not warm"
        LlmEngine(llm).warm_when_idle()
        await asyncio.to_thread(runs.began.wait, 10)
        n_steps, n_before = llm.stats().steps, runs.n
        assert (await llm.generate("The dog", params)).text == wanted
        assert runs.n <= n_before + 1 and llm.stats().steps > n_steps
        runs.began.clear()
        await asyncio.to_thread(runs.began.wait, 10)  # it goes on
        began = time.monotonic()
        await llm.close()
        assert runs.began.is_set() and time.monotonic() - began < 1 and not llm.alive

    asyncio.run(asyncio.wait_for(main(), 60))
