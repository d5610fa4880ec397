"""`AsyncLLM`: many streams from one loop, readers that lag or leave, errors that stay where they belong."""

import asyncio
import gc
import pickle
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tahr import LLM, AsyncLLM, EngineConfig, SamplingParams
from tahr.engine.sequences.parts import ReplyState
from tahr.engine.sequences.sequence import Sequence
from tahr.errors import ConfigError, GenerateError
from tahr.generation.delivery import Dispatcher
from tahr.generation.outputs import MOST_DEFERRED, Request
from tahr.generation.writers import DeferredTextWriter

GREEDY = SamplingParams(temperature=0, max_tokens=20)
ENDLESS = SamplingParams(temperature=0, max_tokens=450, ignore_eos=True)
PROMPTS = ["Once upon a time", "The dog", "One day, a little goat", "Lily and", "The sun", "A big", "He was", "They"]


@pytest.fixture(scope="module")
def alone(stories: Path) -> list[str]:
    with LLM(str(stories), config=EngineConfig(n_threads=2)) as llm:
        return [llm.generate(prompt, GREEDY).text for prompt in PROMPTS]


@asynccontextmanager
async def opened(stories: Path) -> AsyncIterator[AsyncLLM]:
    async with AsyncLLM(str(stories), config=EngineConfig(n_threads=2)) as llm:
        yield llm
    assert not llm._thread.is_alive()
    assert not llm.llm.engine.busy
    llm.llm.engine.scheduler.pools[0].check([])  # every page has come back


def run(stories: Path, test: Callable[[AsyncLLM], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened(stories) as llm:
            await asyncio.wait_for(test(llm), timeout=60)

    asyncio.run(main())


def noting(steps: list[int], llm: AsyncLLM, method: Callable[..., None]) -> Callable[..., None]:
    """The same method, which notes after how many steps it was called."""

    def noted(*args: Any) -> None:
        steps.append(llm.stats().steps)
        method(*args)

    return noted


def count_calls() -> list[object]:
    """Grows with every call by which an engine wakes readers of the running loop."""
    loop, calls = asyncio.get_running_loop(), list[object]()
    call = loop.call_soon_threadsafe

    def counted(callback: Callable[..., object], *args: Any, **options: Any) -> Any:
        if getattr(callback, "__func__", None) is Dispatcher.deliver:
            calls.append(args)
        return call(callback, *args, **options)

    loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
    return calls


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


# ---- requests ---------------------------------------------------------------------------------------------------


def test_many_at_once_are_each_alone(stories: Path, alone: list[str]) -> None:
    async def tell(llm: AsyncLLM, prompt: str) -> str:
        return "".join([chunk.text async for chunk in llm.stream(prompt, GREEDY)])

    async def test(llm: AsyncLLM) -> None:
        assert await asyncio.gather(*(tell(llm, prompt) for prompt in PROMPTS)) == alone
        whole = await asyncio.gather(*(llm.generate(prompt, GREEDY) for prompt in PROMPTS))
        assert [completion.text for completion in whole] == alone
        assert llm.stats().requests_completed == 2 * len(PROMPTS)

    run(stories, test)


def test_chunks(stories: Path, alone: list[str]) -> None:
    async def test(llm: AsyncLLM) -> None:
        stream = await llm.submit(llm.llm.tokenizer.encode(PROMPTS[0]), GREEDY)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.text for chunk in chunks) == alone[0]
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason == "length"
        assert chunks[-1].completion
        assert chunks[-1].completion.text == alone[0]
        assert [chunk async for chunk in stream] == []  # over is over

    run(stories, test)


def test_several_answers(stories: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        params = SamplingParams(temperature=1.0, n=3, seed=5, max_tokens=12)
        whole = await llm.generate(PROMPTS[0], params)
        texts = ["", "", ""]
        async for chunk in llm.stream(PROMPTS[0], params):
            texts[chunk.index] += chunk.text
        assert texts == [whole.text, *(other.text for other in whole.others)]

    run(stories, test)


def test_scores_and_embeddings_meanwhile(stories: Path, alone: list[str]) -> None:
    async def test(llm: AsyncLLM) -> None:
        reply, score, vector = await asyncio.gather(
            llm.generate(PROMPTS[0], GREEDY), llm.score("Once upon a", " time"), llm.embed(["dog", "cat"])
        )
        assert reply.text == alone[0]
        assert score.logprob_sum > -0.1
        assert vector.shape == (2, 64)

    run(stories, test)


# ---- readers that lag or leave ----------------------------------------------------------------------------------


def test_a_lagging_reader_gets_one_merged_chunk(stories: Path, alone: list[str]) -> None:
    async def test(llm: AsyncLLM) -> None:
        stream = await llm.submit(PROMPTS[0], GREEDY)
        await until(lambda: llm.stats().requests_completed == 1)
        (only,) = [chunk async for chunk in stream]
        assert only.text == alone[0]
        assert len(only.token_ids) == 20
        assert only.finish_reason == "length"

    run(stories, test)


def test_a_loop_that_is_busy_elsewhere_misses_nothing(stories: Path, alone: list[str]) -> None:
    async def test(llm: AsyncLLM) -> None:
        calls = count_calls()
        streams = [await llm.submit(prompt, GREEDY) for prompt in PROMPTS]
        n_before, n_steps = len(calls), llm.stats().steps
        time.sleep(0.3)  # not asyncio's: the loop is to be blocked
        assert llm.stats().steps - n_steps > len(PROMPTS)
        assert len(calls) - n_before <= len(PROMPTS)  # calls do not pile up while nobody answers them
        for stream, text in zip(streams, alone, strict=True):
            assert "".join([chunk.text async for chunk in stream]) == text

    run(stories, test)


def test_one_call_per_step_for_all_streams(stories: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        calls = count_calls()
        params = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True)
        streams = [await llm.submit(prompt, params) for prompt in PROMPTS]
        await asyncio.gather(*(stream.completion() for stream in streams))
        assert 10 < len(calls) <= llm.stats().steps

    run(stories, test)


@pytest.mark.serial
def test_a_pause_joins_what_comes_but_the_first_and_the_last(
    stories: Path, alone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        llm = AsyncLLM(llm=LLM(str(stories), config=EngineConfig(n_threads=2)), stream_interval_s=2.0)
        step = llm.llm.engine.step
        monkeypatch.setattr(llm.llm.engine, "step", lambda: (time.sleep(0.005), step())[1])
        async with llm, asyncio.timeout(60):
            endless = await llm.submit(PROMPTS[1], ENDLESS)
            first = await anext(endless)  # from here on the loop rests for two seconds
            began = time.perf_counter()
            stream = await llm.submit(PROMPTS[0], GREEDY)
            chunks = [chunk async for chunk in stream]
            assert time.perf_counter() - began < 1.5  # neither its beginning nor its end has waited for that
            assert "".join(chunk.text for chunk in chunks) == alone[0]
            calls = count_calls()
            second = await anext(endless)
            assert len(first.token_ids) == 1 and len(second.token_ids) > 20
            assert not calls  # the loop came by itself
            endless.close()
            await until(lambda: not llm.llm.engine.busy)
            assert (await llm.generate(PROMPTS[0], GREEDY)).text == alone[0]

    asyncio.run(main())


def test_a_loop_that_is_closed_while_it_rests_leaves_nothing_running(stories: Path, alone: list[str]) -> None:
    llm = AsyncLLM(llm=LLM(str(stories), config=EngineConfig(n_threads=2)), stream_interval_s=30)
    left: list[Any] = []

    async def leave() -> None:
        left.append(await llm.submit(PROMPTS[0], ENDLESS))
        await anext(left[0])

    async def go_on() -> None:
        async with llm, asyncio.timeout(60):
            await until(lambda: llm.stats().requests_cancelled == 1)
            assert (await llm.generate(PROMPTS[0], GREEDY)).text == alone[0]

    asyncio.run(leave())
    asyncio.run(go_on())


def test_leaving_a_stream_frees_its_memory(stories: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        async for _ in llm.stream(PROMPTS[0], ENDLESS):
            break
        await until(lambda: llm.stats().requests_cancelled == 1)
        async with aclosing(llm.stream(PROMPTS[0], ENDLESS)) as stream:
            await anext(stream)
        await until(lambda: llm.stats().requests_cancelled == 2)
        assert llm.stats().pages_used == 0
        assert llm.stats().tokens_generated < 400  # long before either would have ended

    run(stories, test)


def test_a_cancelled_task_frees_its_memory_within_a_step(
    stories: Path, alone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(llm: AsyncLLM) -> None:
        task = asyncio.create_task(llm.generate(PROMPTS[1], ENDLESS))
        other = asyncio.create_task(llm.generate(PROMPTS[0], GREEDY))
        await until(lambda: llm.stats().tokens_generated > 3)
        steps: list[int] = []
        for name in ("_release", "_abort"):  # on the loop's side when the reader leaves, then on the engine's
            monkeypatch.setattr(llm, name, noting(steps, llm, getattr(llm, name)))
        task.cancel()
        await until(lambda: llm.stats().requests_cancelled == 1)
        assert task.cancelled()
        left, freed = steps[:2]
        assert freed - left <= 1  # the step that was running
        assert (await other).text == alone[0]

    run(stories, test)


def test_cancelled_before_it_was_accepted(stories: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        entered, leave = threading.Event(), threading.Event()
        llm._call(lambda: (entered.set(), leave.wait()))  # the engine's thread is held up
        await asyncio.to_thread(entered.wait)
        task = asyncio.create_task(llm.submit(PROMPTS[0], ENDLESS))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        leave.set()
        assert (await llm.generate(PROMPTS[0], GREEDY)).finish_reason == "length"
        assert not llm.llm.engine.busy

    run(stories, test)


def test_a_stream_nobody_holds_is_aborted(stories: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        stream = await llm.submit(PROMPTS[0], ENDLESS)
        await anext(stream)
        del stream
        gc.collect()
        await until(lambda: llm.stats().requests_cancelled == 1)

    run(stories, test)


def test_abort_tells_the_reader(stories: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        stream = await llm.submit(PROMPTS[0], ENDLESS)
        first = await anext(stream)
        await llm.abort(stream.id)
        rest = [chunk async for chunk in stream]
        assert rest[-1].finish_reason == "cancelled"
        assert rest[-1].completion
        assert rest[-1].completion.text == first.text + "".join(chunk.text for chunk in rest)
        await llm.abort(stream.id)  # over already
        await llm.abort(10**9)  # never was

    run(stories, test)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stop", [(), ("no such words",)])  # texts made later, and at once
def test_a_request_that_is_ended_early_keeps_its_text(
    stories: Path, alone: list[str], n: int, stop: tuple[str, ...]
) -> None:
    async def test(llm: AsyncLLM) -> None:
        other = asyncio.create_task(llm.generate(PROMPTS[1], GREEDY))
        stream = await llm.submit(PROMPTS[0], replace(ENDLESS, n=n, stop=stop))
        chunks = [await anext(stream) for _ in range(n)]
        stream.end_early()
        stream.end_early()  # again changes nothing
        chunks += [chunk async for chunk in stream]
        ends = [chunk for chunk in chunks if chunk.finish_reason]
        assert [each.finish_reason for each in ends] == ["abort"] * n
        for each in ends:
            assert each.completion
            text = "".join(chunk.text for chunk in chunks if chunk.index == each.index)
            assert each.completion.text == text == llm.llm.tokenizer.decode(each.completion.token_ids)
        assert (await other).text == alone[1]
        assert llm.stats().requests_cancelled == n

    run(stories, test)


def test_a_request_that_waits_is_ended_early_without_text(stories: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        running = [await llm.submit(PROMPTS[0], replace(ENDLESS, n=16))]
        waiting = await llm.submit(PROMPTS[1], ENDLESS)
        assert waiting.request.sequences[0].n_generated == 0
        waiting.end_early()
        (only,) = [chunk async for chunk in waiting]
        assert (only.finish_reason, only.text) == ("abort", "")
        running[0].close()

    run(stories, test)


# ---- errors -----------------------------------------------------------------------------------------------------


def test_a_bad_request_fails_alone_and_at_once(stories: Path, alone: list[str]) -> None:
    async def test(llm: AsyncLLM) -> None:
        good = asyncio.create_task(llm.generate(PROMPTS[0], GREEDY))
        for wrong in ([], [-1], [5] * 600):
            with pytest.raises(ConfigError):
                await llm.submit(wrong, GREEDY)
        with pytest.raises(ConfigError, match="logit_bias"):
            await llm.generate(PROMPTS[0], SamplingParams(logit_bias={600: 1.0}))
        assert (await good).text == alone[0]

    run(stories, test)


def test_a_request_says_once_that_it_has_something_new_and_again_at_its_end() -> None:
    seq = Sequence([1], SamplingParams(), ReplyState(8))
    request = Request(seq)
    assert request.add((seq, ("a",), (2,))) and not request.add((seq, ("b",), (3,)))
    chunk = request.next_chunk()
    assert chunk and chunk.text == "ab" and chunk.token_ids == [2, 3]
    assert request.add((seq, ("c",), (4,))) and not request.finished
    seq.result.finish_reason = "length"
    assert request.add((seq, (), (5,))) and request.finished


class CountingWriter(DeferredTextWriter):
    """Counts the tokens it makes text of at once; every token is a letter."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def take(self, n_tokens: int) -> tuple[str, ...]:
        self.counts.append(n_tokens)
        return ("x" * n_tokens,) if n_tokens else ()


def test_a_long_reply_becomes_text_bit_by_bit() -> None:
    writer = CountingWriter()
    seq = Sequence([1], SamplingParams(), ReplyState(2000, writer))
    request = Request(seq)
    for token in range(1000):
        request.add((seq, (), (token,)))
    chunk = request.next_chunk()
    assert chunk and chunk.text == "x" * 1000 and len(chunk.token_ids) == 1000
    assert max(writer.counts) <= MOST_DEFERRED + 1 and sum(writer.counts) == 1000


def test_a_request_that_fails_on_the_way_fails_alone(
    stories: Path, alone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Sequence.append

    def broken(seq: Sequence, token: int, now: float) -> None:
        if seq.params.seed == 13 and seq.n_generated == 3:
            raise ZeroDivisionError("unlucky")
        append(seq, token, now)

    monkeypatch.setattr(Sequence, "append", broken)

    async def test(llm: AsyncLLM) -> None:
        bad, good = await asyncio.gather(
            llm.generate(PROMPTS[1], SamplingParams(seed=13)), llm.generate(PROMPTS[0], GREEDY), return_exceptions=True
        )
        assert isinstance(bad, GenerateError)
        assert "unlucky" in str(bad)
        assert not isinstance(good, BaseException)
        assert good.text == alone[0]

    run(stories, test)


def test_a_fault_of_the_engine_leaves_nobody_waiting(
    stories: Path, alone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(llm: AsyncLLM) -> None:
        streams = [await llm.submit(prompt, ENDLESS) for prompt in PROMPTS[:3]]
        with monkeypatch.context() as patch:
            patch.setattr(llm.llm.engine.scheduler, "schedule", lambda: 1 / 0)
            for stream in streams:
                with pytest.raises(GenerateError, match="ZeroDivisionError"):
                    await stream.completion()
        assert (await llm.generate(PROMPTS[0], GREEDY)).text == alone[0]

    run(stories, test)


# ---- rest and the end -------------------------------------------------------------------------------------------


def test_idle_costs_nothing(stories: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        await llm.generate(PROMPTS[0], GREEDY)
        before = time.process_time()
        await asyncio.sleep(1)
        assert time.process_time() - before < 0.05

    run(stories, test)


def test_closing_ends_everything(stories: Path) -> None:
    async def main() -> None:
        async with opened(stories) as llm:
            streams = [await llm.submit(prompt, ENDLESS) for prompt in PROMPTS[:3]]
            waiting = [asyncio.create_task(stream.completion()) for stream in streams]
            await asyncio.sleep(0.02)
        assert {completion.finish_reason for completion in await asyncio.gather(*waiting)} == {"cancelled"}
        with pytest.raises(GenerateError, match="closed"):
            await llm.generate(PROMPTS[0], GREEDY)
        await llm.close()  # twice is fine

    asyncio.run(main())


def test_a_loop_that_is_gone_does_not_stop_the_engine(stories: Path, alone: list[str]) -> None:
    llm = AsyncLLM(llm=LLM(str(stories), config=EngineConfig(n_threads=2)))
    kept: list[Any] = []

    async def leave() -> None:
        kept.append(await llm.submit(PROMPTS[0], ENDLESS))

    async def go_on() -> None:
        async with llm:
            assert (await llm.generate(PROMPTS[0], GREEDY)).text == alone[0]

    asyncio.run(leave())
    asyncio.run(go_on())
    assert not llm.llm.engine.busy


def test_pickling_is_refused(stories: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(llm)

    run(stories, test)


def test_a_command_that_raises_leaves_the_thread_alive(
    stories: Path, alone: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(llm: AsyncLLM) -> None:
        good = asyncio.create_task(llm.generate(PROMPTS[0], GREEDY))
        assert llm._post(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
        assert (await good).text == alone[0]
        assert llm.alive

    run(stories, test)
    assert "command" in caplog.text


def test_a_request_is_aborted_by_its_stream_or_its_id(stories: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        for name in (lambda stream: stream, lambda stream: stream.id):
            stream = await llm.submit("Once", ENDLESS)
            await llm.abort(name(stream))
            assert (await stream.completion()).finish_reason == "cancelled"
        with pytest.raises(ConfigError, match="needs a stream or the id of one"):
            await llm.abort("x")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="must be one text"):
            await llm.submit(["a", "b"])  # type: ignore[list-item]

    run(stories, test)
