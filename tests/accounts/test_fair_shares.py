"""Owners who share an engine get equal parts of it, however many requests each of them sends."""

import random
from collections import Counter

import pytest

from null_model import NullModel, scheduler, sequence
from tahr.engine.scheduling.policies import POLICIES
from tahr.engine.scheduling.scheduler import Scheduler
from tahr.engine.scheduling.waiting_queue import PATIENCE, WaitingQueue
from tahr.engine.sequences import shares as all_shares
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.sequences.shares import Shares


def owned(owner: str, prompt: int | list[int], n_new: int, **options: object) -> Sequence:
    seq = sequence(prompt, n_new, **options)
    seq.queueing.owner = owner
    return seq


def tokens_of(sched: Scheduler, at_once: dict[str, int], n_steps: int, seed: int = 0, prompt: int = 12) -> Counter[str]:
    """Tokens that each owner's requests were made of in some steps, where each always has so many at once."""
    random_of = {owner: random.Random(f"{owner} {seed}") for owner in at_once}
    model = NullModel(sched)
    running: dict[str, list[Sequence]] = {owner: [] for owner in at_once}
    counts: Counter[str] = Counter()
    for _ in range(n_steps):
        for owner, n in at_once.items():
            done = [seq for seq in running[owner] if seq.done]
            counts[owner] += sum(seq.n_generated for seq in done)
            running[owner] = [seq for seq in running[owner] if not seq.done]
            for _ in range(n - len(running[owner])):
                rng = random_of[owner]
                tokens = [rng.randrange(3) for _ in range(rng.randrange(1, prompt))]
                running[owner].append(owned(owner, tokens, rng.randrange(1, 40)))
                sched.add(running[owner][-1])
        model.step()
    for owner, left in running.items():
        counts[owner] += sum(seq.n_generated for seq in left)
    return counts


def spread(counts: Counter[str]) -> float:
    return max(counts.values()) / min(counts.values())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("n_seqs", [4, 16])
def test_eight_owners_get_equal_parts_and_a_greedy_one_no_more(n_seqs: int, seed: int) -> None:
    at_once = {f"owner {i}": 4 for i in range(7)} | {"greedy": 200}
    options = {"n_seqs": n_seqs, "n_prefill_seqs": n_seqs, "n_decode_seqs": n_seqs, "n_prefill_tokens": 32}
    counts = tokens_of(scheduler(n_pages=600, **options), at_once, 2500, seed)
    assert spread(counts) < 1.1, counts


def test_they_do_where_memory_is_short_and_requests_are_preempted() -> None:
    sched = scheduler(n_pages=40, n_seqs=8, n_prefill_seqs=8, n_decode_seqs=8)
    counts = tokens_of(sched, {"a": 4, "b": 8, "greedy": 60}, 2500)
    assert sched.n_preempted > 20 and spread(counts) < 1.1, (counts, sched.n_preempted)


def test_long_requests_and_short_ones_get_equal_parts() -> None:
    """The parts are of tokens, not of requests."""
    model = NullModel(scheduler(n_pages=300, n_seqs=2))
    lengths = {"long": 60, "short": 3}
    done: Counter[str] = Counter()
    waiting: dict[str, list[Sequence]] = {owner: [] for owner in lengths}
    for _ in range(2500):
        for owner, n_new in lengths.items():
            done[owner] += n_new * sum(seq.done for seq in waiting[owner])
            waiting[owner] = [seq for seq in waiting[owner] if not seq.done]
            while len(waiting[owner]) < 8:
                waiting[owner].append(owned(owner, 2, n_new))
                model.sched.add(waiting[owner][-1])
        model.step()
    computed = {"long": done["long"] / 60 * 61, "short": done["short"] / 3 * 4}  # the last token is not computed
    assert max(computed.values()) / min(computed.values()) < 1.1, computed


def test_an_owner_who_comes_goes_next_and_saves_nothing_up() -> None:
    model = NullModel(scheduler(n_pages=100, n_seqs=1))
    greedy = [owned("greedy", 3, 5) for _ in range(60)]
    for seq in greedy:
        model.sched.add(seq)
    for _ in range(100):
        model.step()
    late = [owned("late", 3, 5) for _ in range(20)]
    for seq in late:
        model.sched.add(seq)
    n_before = sum(seq.done for seq in greedy)
    model.run(late[0])
    assert sum(seq.done for seq in greedy) <= n_before + 2
    model.run(late[9])
    assert 5 <= sum(seq.done for seq in greedy) - n_before <= 14, "what it did not use before is not made up for"


def test_the_policy_goes_before_the_shares() -> None:
    model = NullModel(scheduler(n_pages=100, n_seqs=1, order="priority"))
    running = owned("a", 3, 5)
    model.sched.add(running)
    model.step()
    low, high = owned("b", 3, 3, priority=1), owned("a", 3, 3, priority=5)
    for seq in (low, high):
        model.sched.add(seq)
    model.run(high)
    assert not low.done


def test_nobody_starves_among_owners_and_policies() -> None:
    model = NullModel(scheduler(n_pages=100, n_seqs=1, order="priority"))
    low = owned("low", 3, 2)
    model.sched.add(low)
    n_passed = 0
    while not low.done:
        while model.sched.n_waiting < 4:
            model.sched.add(owned(f"owner {n_passed % 3}", 1, 1, priority=9))
            n_passed += 1
        model.step()
    assert n_passed <= PATIENCE * 5 + 10


def test_without_owners_the_order_is_that_of_turns() -> None:
    queue = WaitingQueue(POLICIES["fcfs"], Shares())
    sequences = [sequence(3, 3, n_before=i % 3) for i in range(12)]
    for seq in sequences:
        queue.add(seq)
    order = [queue.pop() for _ in sequences]
    assert order == sorted(sequences, key=lambda seq: seq.queueing.rank) and queue.first is None


def test_the_queue_holds_nothing_of_those_who_have_left() -> None:
    queue = WaitingQueue(POLICIES["fcfs"], Shares())
    rng = random.Random(3)
    waiting: list[Sequence] = []
    for i in range(5000):
        seq = owned(f"owner {rng.randrange(50)}", 3, 3)
        queue.add(seq)
        waiting.append(seq)
        if i > 100 and i % 7:
            first = queue.pop()
            first.queueing.share.n_tokens += rng.randrange(100)
            waiting.remove(first)
        if i % 7 == 0:
            gone = waiting.pop(rng.randrange(len(waiting)))
            queue.remove(gone)
    assert len(queue) == len(waiting) and {seq.id for seq in queue.members} == {seq.id for seq in waiting}
    assert len(queue._by_share) < 200 and len(queue._places) <= 50
    popped = [queue.pop() for _ in waiting]
    assert {seq.id for seq in popped} == {seq.id for seq in waiting} and queue.first is None
    assert not queue._by_share and not queue._places and not queue._by_rank


def test_the_first_has_the_lowest_place_of_all() -> None:
    """Against a search through all members, while shares change."""
    rng = random.Random(5)
    queue = WaitingQueue(POLICIES["priority"], Shares())
    members: list[Sequence] = []
    for _ in range(3000):
        if rng.random() < 0.55 or not members:
            members.append(owned(f"owner {rng.randrange(6)}", 3, 3, priority=rng.randrange(3)))
            queue.add(members[-1])
        else:
            first = queue.first
            places = {
                seq.id: (
                    *seq.queueing.rank[:2],
                    seq.queueing.share.n_tokens * seq.queueing.rank[0],
                    *seq.queueing.rank[2:],
                )
                for seq in members
            }
            assert first and first.id == min(places, key=lambda id: places[id])
            members.remove(queue.pop())
            first.queueing.share.n_tokens += rng.randrange(50)


def test_owners_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_shares, "MAX_SHARES", 100)
    shares = Shares()
    for i in range(1000):
        share = shares.enter(f"owner {i}")
        share.n_tokens += 10
        shares.admit(share)
    assert len(shares._of) <= 101
