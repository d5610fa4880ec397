"""Engines that sleep: their memory is given back, and the same texts follow after they wake."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import story_model
from backends_here import NAMES
from engines import Tally, greedy, run
from model_cases import CASES, make_weights
from model_files import write_hf
from tahr import AsyncLLM, SamplingParams
from tahr.backends import open_backend
from tahr.backends.cuda.layouts.presence import interprets
from tahr.config import EngineConfig
from tahr.engine import sleeping
from tahr.engine.engine import Engine
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.errors import ConfigError, GenerateError
from tahr.grammar.spec import Grammar
from tahr.loading.builder import build_engine
from tahr.models.loader import load, open_model

PROMPT = [1, 5, 9, 2, 3, 4, 8, 1, 6, 5]


def engine_of(name: str, case: str, folder: Path) -> Engine:
    be = open_backend(name, deterministic=True)
    source = open_model([], write_hf(folder, CASES[case], make_weights(CASES[case])))
    config = EngineConfig(context_size=64, page_size=4, max_batch_size=2, kv_dtype="f32")
    return build_engine(be, load(source, be).decoder, config)[0]


def reply(engine: Engine, n: int = 4) -> list[int]:
    seq = engine.submit(ResolvedRequest(PROMPT, greedy(n), Tally))
    return run(engine, seq)[0]


@pytest.mark.parametrize("case", ["llama", "qwen3_next"])  # pages alone, and states beside them
@pytest.mark.parametrize("name", NAMES)
def test_texts_are_the_same_after_a_sleep(name: str, case: str, tmp_path: Path) -> None:
    if name == "cuda" and interprets():
        pytest.skip("a step takes seconds there; `test_storages_become_empty_and_full_again` shows the device's part")
    engine = engine_of(name, case, tmp_path)
    wanted = reply(engine)
    assert reply(engine) == wanted
    for _ in range(2):
        n_hits = engine.snapshot().prefix_hits
        assert (sleeping.sleep(engine) > 0) == (name in ("cpu", "cuda"))
        sleeping.wake(engine)
        assert reply(engine) == wanted
        assert engine.snapshot().prefix_hits == n_hits and engine.scheduler.prefix  # nothing was found that is gone
        assert reply(engine) == wanted


def test_what_works_or_would_lose_something_does_not_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("cpu", "llama", tmp_path)
    seq = engine.submit(ResolvedRequest(PROMPT, greedy(4), Tally))
    with pytest.raises(GenerateError, match="still works"):
        sleeping.sleep(engine)
    run(engine, seq)
    pool = engine.scheduler.pools[0]
    held = pool.take(1)
    with pytest.raises(GenerateError, match="or sessions hold its pages"):
        sleeping.sleep(engine)
    pool.release(held)
    idle = SimpleNamespace(n_waiting=0, n_copying=0)
    places: list[tuple[Any, str, str]] = [
        (engine, "tower_facts", "images or recordings"),
        (engine.scheduler, "tiers", "host memory or on a disk"),
    ]
    for owner, name, says in places:
        with monkeypatch.context() as patch, pytest.raises(ConfigError, match=says):
            patch.setattr(owner, name, idle)
            sleeping.sleep(engine)
    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="adapters on a GPU"):
        patch.setattr(engine.adapters, "n_used", 1)
        patch.setattr(engine.executor, "facts", engine.executor.facts._replace(has_own_memory=True))
        sleeping.sleep(engine)
    assert sleeping.sleep(engine) > 0


def test_memory_of_keys_and_values_is_zero_and_not_resident(tmp_path: Path) -> None:
    from tahr.backends.cpu.sleeping import dropped

    array = np.ones((1000, 1001), np.float32)
    assert 0 < dropped(array) <= array.nbytes and not array.any()
    small = np.ones(3, np.float32)
    assert dropped(small) == 0 and not small.any()


def test_requests_wake_an_engine_by_themselves(tmp_path: Path) -> None:
    async def talk() -> None:
        async with AsyncLLM(str(story_model.write(tmp_path)), n_threads=1) as llm:
            params = SamplingParams(max_tokens=8, temperature=0.0)
            wanted = await llm.generate("Once upon a time", params)
            assert await llm.sleep() > 0 and llm.asleep and await llm.sleep() == 0
            both = await asyncio.gather(*(llm.generate("Once upon a time", params) for _ in range(2)))
            assert [each.token_ids for each in both] == [wanted.token_ids] * 2 and not llm.asleep
            await llm.sleep()
            await llm.wake()
            assert not llm.asleep
            await llm.sleep()
            vector: Any = await llm.embed("a goat")
            assert not llm.asleep and vector.shape

    asyncio.run(talk())


def test_an_engine_that_cannot_wake_goes_on_sleeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk() -> None:
        async with AsyncLLM(str(story_model.write(tmp_path)), n_threads=1) as llm:
            await llm.sleep()

            def fails(engine: Engine) -> None:
                raise GenerateError("There is no memory to wake.")

            with monkeypatch.context() as patch, pytest.raises(GenerateError, match="no memory to wake"):
                patch.setattr(sleeping, "wake", fails)
                await llm.generate("Once upon a time", max_tokens_of(2))
            assert llm.asleep
            assert (await llm.generate("Once upon a time", max_tokens_of(2))).token_ids and not llm.asleep

    asyncio.run(talk())


def max_tokens_of(n: int) -> SamplingParams:
    return SamplingParams(max_tokens=n, temperature=0.0)


def test_storages_become_empty_and_full_again() -> None:
    """The device's part, on torch's own CPU tensors."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from tahr.backends.api import Weight
    from tahr.backends.cuda.sleeping import SleepingMemory

    memory = SleepingMemory(torch.device("cpu"))
    whole = torch.randn(64, 32)
    views = [Weight(f"w{i}", "F32", "dense", 32, 32, 4096, whole[32 * i : 32 * i + 32]) for i in range(2)]
    pages = torch.ones(100, 8)
    before = whole.clone()
    n_bytes = memory.sleep([views, (pages,)], [[pages]])
    assert n_bytes == whole.nbytes + pages.nbytes
    assert whole.untyped_storage().nbytes() == pages.untyped_storage().nbytes() == 0
    memory.wake()
    assert torch.equal(whole, before) and torch.equal(views[1].data, before[32:]) and not pages.any()
    assert memory.sleep([views], [[pages]]) == n_bytes
    with pytest.MonkeyPatch.context() as patch, pytest.raises(GenerateError, match="to wake the model"):
        patch.setattr(torch.UntypedStorage, "resize_", out_of_memory(torch.UntypedStorage.resize_))
        memory.wake()
    memory.wake()
    assert torch.equal(whole, before)


def out_of_memory(resize: Any) -> Any:
    """A `resize_` that has memory for one storage alone."""
    n_left = [1]

    def method(storage: Any, n_bytes: int) -> None:
        if n_bytes:
            n_left[0] -= 1
            if n_left[0] < 0:
                raise RuntimeError("out of memory")
        resize(storage, n_bytes)

    return method


FEATURES: dict[str, tuple[dict[str, Any], SamplingParams]] = {
    "n > 1": ({}, SamplingParams(max_tokens=8, temperature=1.0, seed=3, n=3)),
    "grammar": ({}, SamplingParams(max_tokens=12, temperature=0.0, grammar=Grammar("regex", "[a-z]{4} (goat|dog)!"))),
    "drafts": ({"spec_ngram": True}, max_tokens_of(30)),
    "preemption": ({"context_size": 64, "page_size": 8, "kv_bytes": 70_000, "max_batch_size": 3}, max_tokens_of(40)),
    "logprobs": ({}, SamplingParams(max_tokens=8, temperature=0.0, logprobs=3)),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_features_after_a_sleep(feature: str, tmp_path: Path) -> None:
    options, params = FEATURES[feature]

    async def talk() -> None:
        async with AsyncLLM(str(story_model.write(tmp_path)), n_threads=1, **options) as llm:

            async def replies() -> list[Any]:
                made = await asyncio.gather(*(llm.generate(f"Once upon a time {i}", params) for i in range(3)))
                return [(each.token_ids, each.text, each.logprobs) for each in made]

            wanted = await replies()
            await llm.sleep()
            assert await replies() == wanted
            stats = llm.stats()
            assert (stats.preemptions > 1) == (feature == "preemption"), stats
            assert (stats.spec_accepted_tokens > 0) == (feature == "drafts")

    asyncio.run(talk())
