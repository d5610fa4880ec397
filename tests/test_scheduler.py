"""The scheduler against random traffic on tiny pools: no arrays, no model, page integrity after every step."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tahr.config import SamplingParams
from tahr.engine.scheduler import Limits, Scheduler, Work
from tahr.engine.sequence import Sequence
from tahr.errors import KvCacheFull
from tahr.kv.pages import PagePool

PAGE = 4


def scheduler(n_pages: int, n_tokens: int = 16, n_seqs: int = 4, chunk: int = 8) -> Scheduler:
    return Scheduler(PagePool(n_pages), PAGE, Limits(n_tokens, n_seqs, chunk))


def sequence(n_prompt: int, n_new: int) -> Sequence:
    return Sequence(list(range(n_prompt)), SamplingParams(), n_prompt + n_new)


def run_step(sched: Scheduler) -> list[Work]:
    """One step of an engine whose model always has a next token."""
    work = sched.next()
    picking = [item.sequence for item in work if item.picks]
    sched.advance(work)
    for seq in picking:
        seq.tokens.append(0)
        if len(seq.tokens) >= seq.max_length:
            seq.finish_reason = "length"
            sched.remove(seq)
    sched.pool.check(s.pages for s in sched.running)
    return work


def check_work(sched: Scheduler, work: list[Work]) -> None:
    assert sum(item.n_tokens for item in work) <= sched.limits.n_tokens
    assert len(work) == len({item.sequence.id for item in work}) <= sched.limits.n_seqs
    assert all(0 < item.n_tokens <= sched.limits.prefill_chunk for item in work)


def test_twenty_requests_share_a_pool_for_two() -> None:
    sched = scheduler(n_pages=10)
    everyone = [sequence(12, 8) for _ in range(20)]
    for seq in everyone:
        sched.add(seq)
    for _ in range(5000):
        work = run_step(sched)
        check_work(sched, work)
        for seq in sched.running:
            assert len(seq.pages) <= sched.pages_for(len(seq.tokens)), "more than one page of waste"
        if all(seq.done for seq in everyone):
            break
    assert all(seq.done for seq in everyone)
    assert sched.pool.n_used == 0


def test_decoding_goes_on_while_a_long_prompt_comes_in() -> None:
    sched = scheduler(n_pages=100)
    talker, reader = sequence(2, 50), sequence(80, 1)
    sched.add(talker)
    run_step(sched)
    sched.add(reader)
    chunks = []
    while not reader.done:
        work = {item.sequence.id: item.n_tokens for item in run_step(sched)}
        assert work[talker.id] == 1, "the running sequence lost a turn to the prompt"
        chunks.append(work[reader.id])
    assert max(chunks) == 8 and sum(chunks) == 80


def test_the_oldest_wins_when_memory_runs_out() -> None:
    sched = scheduler(n_pages=6)
    old, young = sequence(8, 14), sequence(8, 14)
    sched.add(old)
    sched.add(young)
    finished = []
    for _ in range(200):
        run_step(sched)
        finished += [name for name, seq in (("old", old), ("young", young)) if seq.done and name not in finished]
    assert finished == ["old", "young"]
    assert sched.n_preempted > 0


def test_arrival_order_is_kept_by_those_who_wait() -> None:
    sched = scheduler(n_pages=4, n_seqs=1)
    order: list[int] = []
    everyone = [sequence(4, 3) for _ in range(5)]
    for seq in everyone:
        sched.add(seq)
    while not all(seq.done for seq in everyone):
        order += [item.sequence.id for item in run_step(sched) if item.sequence.id not in order]
    assert order == [seq.id for seq in everyone]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(4, 12), st.integers(1, 5), st.integers(1, 9))
def test_random_traffic_never_breaks_the_pool_and_starves_nobody(seed: int, pages: int, seqs: int, chunk: int) -> None:
    rng = random.Random(seed)
    sched = scheduler(pages, n_tokens=chunk + seqs, n_seqs=seqs, chunk=chunk)
    everyone: list[Sequence] = []
    for _ in range(60):
        if rng.random() < 0.4:
            n_prompt = rng.randint(1, pages * PAGE - 1)
            everyone.append(sequence(n_prompt, rng.randint(1, pages * PAGE - n_prompt)))
            sched.add(everyone[-1])
        if everyone and rng.random() < 0.1:
            victim = rng.choice(everyone)
            if not victim.done:
                victim.finish_reason = "cancelled"
                sched.remove(victim)
                assert len(victim.pages) == 0
        check_work(sched, run_step(sched))
    bound = sum(s.max_length * 4 for s in everyone) * (len(everyone) + 1) + 1
    for _ in range(bound):
        if all(seq.done for seq in everyone):
            break
        assert run_step(sched), "work is waiting, but the scheduler chose none"
    assert all(seq.done for seq in everyone)
    assert sched.pool.n_free == pages


def test_pool_refuses_what_it_does_not_have() -> None:
    pool = PagePool(3)
    held = pool.take(2)
    with pytest.raises(KvCacheFull, match="1 free pages of 3"):
        pool.take(2)
    pool.share(held)
    pool.release(held)
    assert pool.n_free == 1
    pool.release(held)
    assert pool.n_free == 3
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(held)
