"""Replies, embeddings, scores, sessions and beams share one engine: they take turns, and none changes another."""

import asyncio
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from engines import alone, engine, greedy, loaded, page_bytes, poison, run, submit
from null_model import NullModel, scheduler, sequence
from tahr import LLM, AsyncLLM, EngineConfig, SamplingParams
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.errors import ConfigError, GenerateError
from tahr.executor.output import Output
from tahr.library.embeddings import EmbeddingJob, Pooling
from tahr.library.feeder import Feeder, LastRow

ENDLESS = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
PROMPT = [1, 5, 9, 33, 70, 12]


def texts(n: int, length: int = 40) -> list[list[int]]:
    return [[1, *((i * 7 + j * 3) % 400 + 3 for j in range(length))] for i in range(n)]


def check_pages(eng: object) -> None:
    for group, pool in enumerate(eng.scheduler.pools):  # type: ignore[attr-defined]
        pool.check(seq.memory.tables[group].held for seq in eng.scheduler.running)  # type: ignore[attr-defined]


# ---- turns ----------------------------------------------------------------------------------------------------


def test_a_reply_waits_at_most_one_chunk_for_embeddings(stories: Path) -> None:
    eng = engine(stories, prefill_chunk_size=32, max_batch_size=4)
    talker = submit(eng, PROMPT, greedy(30))
    job = EmbeddingJob(eng, texts(50), Pooling.MEAN)
    waited = 0
    while not talker.done:
        waited = 0 if any(seq is talker for seq, *_ in eng.step()) else waited + 1
        assert waited <= 1
        check_pages(eng)
    assert not job.finished, "the embeddings were first"
    assert talker.tokens[len(PROMPT) :] == alone(stories, PROMPT, greedy(30))
    late = submit(eng, PROMPT[:4], greedy(2))
    for _ in range(6):
        eng.step()
    assert late.done, "a late request waits behind all embeddings"
    while not job.finished:
        eng.step()
    assert not eng.busy and eng.scheduler.pools[0].n_used == 0


@pytest.mark.parametrize("pooling", list(Pooling))
def test_embeddings_are_those_of_each_text_alone(stories: Path, pooling: Pooling) -> None:
    several = [*texts(7), [5], texts(1, 200)[0]]
    n_pages = 40  # fewer than all need at once
    vectors = []
    for options in ({}, {"prefill_chunk_size": 16, "max_batch_size": 3, "kv_bytes": n_pages * page_bytes(stories)}):
        eng = engine(stories, **options)
        talker = submit(eng, PROMPT, greedy(60))
        job = EmbeddingJob(eng, several, pooling)
        while not job.finished:
            eng.step()
            check_pages(eng)
        vectors.append(job.vectors())
        assert run(eng, talker) == [alone(stories, PROMPT, greedy(60))]
    single = []
    for text in several:
        job = EmbeddingJob(eng, [text], pooling)
        while not job.finished:
            eng.step()
        single.append(job.vectors()[0])
    np.testing.assert_array_equal(vectors[0], vectors[1])
    np.testing.assert_array_equal(vectors[0], single)


def test_the_scheduler_alternates_between_outputs() -> None:
    model = NullModel(scheduler(100, prefill_chunk=4))
    talker, other = sequence([1] * 4, 12), sequence([2] * 40, 1)
    other.wanted.output, other.queueing.stays = Output.HIDDEN, True
    for seq in (talker, other):
        model.sched.add(seq)
    seen = [{item.sequence.wanted.output for item in model.step()} for _ in range(12)]
    assert all(len(outputs) == 1 for outputs in seen)
    assert seen == [{Output.HIDDEN}, {Output.LOGITS}] * 6


# ---- those who leave ------------------------------------------------------------------------------------------


def test_an_aborted_job_frees_everything(stories: Path) -> None:
    eng = engine(stories)
    job = EmbeddingJob(eng, texts(40))
    eng.step()
    job.abort()
    assert not eng.busy and eng.scheduler.pools[0].n_used == 0
    with pytest.raises(ConfigError, match="context holds"):
        EmbeddingJob(eng, [[1], [1] * 1000])
    with pytest.raises(ConfigError, match="without tokens"):
        EmbeddingJob(eng, [[1], []])
    with pytest.raises(ConfigError, match="Token ids"):
        EmbeddingJob(eng, [[1], [1 << 20]])
    assert not eng.busy


def test_streams_go_on_beside_embeddings_and_a_client_that_leaves_ends_them(stories: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(str(stories), config=EngineConfig(n_threads=2, prefill_chunk_size=64)) as llm:
            quiet = await llm.generate("Once upon a time", ENDLESS)
            job = asyncio.create_task(llm.embed(texts(1500, 60), "mean"))
            chunks = [chunk async for chunk in llm.stream("Once upon a time", ENDLESS)]
            assert "".join(chunk.text for chunk in chunks) == quiet.text
            assert not job.done(), "the stream had to wait for all embeddings"
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            before = llm.stats().tokens_prefilled
            few = await asyncio.wait_for(llm.embed(["dog", "cat"]), 20)
            assert few.shape[0] == 2
            assert llm.stats().tokens_prefilled - before < 500, "embeddings go on after their client has left"
            assert (await llm.embed([])).shape[0] == 0
            with pytest.raises(ConfigError, match="pooling"):
                await llm.embed("dog", "median")
        assert not llm.llm.engine.busy

    asyncio.run(main())


def test_closing_ends_embeddings_with_a_sentence(stories: Path) -> None:
    async def main() -> None:
        llm = AsyncLLM(str(stories), config=EngineConfig(n_threads=2))
        job = asyncio.create_task(llm.embed(texts(2000)))
        while not llm.stats().tokens_prefilled:
            await asyncio.sleep(0.01)
        await llm.close()
        with pytest.raises(GenerateError, match="closed"):
            await job
        assert llm.llm.engine.scheduler.pools[0].n_used == 0

    asyncio.run(main())


# ---- faults ---------------------------------------------------------------------------------------------------


def test_nothing_is_left_to_do_for_a_job_that_has_failed(stories: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(str(stories), config=EngineConfig(n_threads=2, max_batch_size=4)) as llm:
            steps = llm.llm.engine.steps
            sound = steps.launch

            def broken(*_: object) -> None:
                steps.launch = sound  # type: ignore[method-assign]
                raise OSError("the device fell off the bus")

            steps.launch = broken  # type: ignore[method-assign]
            with pytest.raises(GenerateError, match="fell off the bus"):
                await llm.embed(texts(1500, 60))
            assert (await llm.embed(["dog", "cat"])).shape[0] == 2
            assert llm.stats().tokens_prefilled < 500, "texts are computed that nobody waits for"

    asyncio.run(main())


@pytest.mark.parametrize("length", [8, 200])
def test_scores_of_logits_that_are_not_numbers_end_the_request(stories: Path, length: int) -> None:
    eng = engine(stories)
    others = submit(eng, PROMPT)
    victim = submit(eng, texts(1, length)[0], greedy(2, prompt_logprobs=1))
    poison(eng, lambda seq: seq is victim)
    events = []
    while not victim.done:
        events += eng.step()
    assert isinstance(victim.result.error, GenerateError) and any(seq is victim for seq, *_ in events)
    assert run(eng, others) == [alone(stories, PROMPT)]


def test_a_text_whose_rows_cannot_be_taken_fails_alone(stories: Path) -> None:
    eng = engine(stories)

    def broken(rows: np.ndarray) -> None:
        raise RuntimeError("no room for the rows")

    seq = eng.submit_rows(PROMPT, broken)
    other = submit(eng, PROMPT)
    assert run(eng, other) == [alone(stories, PROMPT)]
    assert isinstance(seq.result.error, GenerateError) and eng.scheduler.pools[0].n_used == 0


# ---- sequences fed by hand ------------------------------------------------------------------------------------


def test_an_idle_sequence_gives_way_and_is_computed_again(stories: Path) -> None:
    eng = engine(stories, kv_bytes=page_bytes(stories) * 6, context_size=48, prefix_cache=False)
    feeder, last = Feeder(eng), LastRow()
    wanted = feeder.open([*PROMPT, 44], last)
    feeder.run(wanted)
    row = last.row
    feeder.close(wanted)
    seq = feeder.open(PROMPT, last)
    feeder.run(seq)
    run(eng, submit(eng, texts(1, 40)[0], greedy(4)))
    assert seq.queueing.swapped_out and not any(seq.memory.tables)
    feeder.feed(seq, [44])
    feeder.run(seq)
    np.testing.assert_array_equal(last.row, row)
    feeder.close(seq)
    assert not eng.busy


# ---- threads and processes ------------------------------------------------------------------------------------


def test_threads_may_share_a_model(stories: Path) -> None:
    prompts = ["Once upon a time", "The dog", "One day", "Lily and", "The sun", "A big"]
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    with LLM(str(stories), config=EngineConfig(n_threads=2)) as llm:
        wanted = [llm.generate(prompt, params).text for prompt in prompts]
        vector = llm.embed("dog")
        found: dict[int, list[str]] = {}

        def work(i: int) -> None:
            texts = [llm.generate(prompts[i], params).text for _ in range(3)]
            texts.append("".join(chunk.text for chunk in llm.stream(prompts[i], params)))
            np.testing.assert_array_equal(llm.embed("dog"), vector)
            found[i] = texts

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == {i: [text] * 4 for i, text in enumerate(wanted)}
        assert not llm.engine.busy


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_refused_in_a_sentence(stories: Path) -> None:
    eng = engine(stories)
    loaded(stories)
    pid = os.fork()
    if pid == 0:  # the child: nothing of pytest may run here
        try:
            eng.submit(ResolvedRequest(PROMPT, greedy(), lambda: None))  # type: ignore[arg-type, return-value]
        except GenerateError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
