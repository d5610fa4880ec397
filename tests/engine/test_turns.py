"""Requests take turns: many choices or prompts of one keep no other waiting until all of them are over, and those in
the background, as a batch's, have steps, places and pages that no other wants.
"""

import pytest

from null_model import NullModel, expected, scheduler, sequence
from tahr.config import SCHEDULING_POLICIES
from tahr.engine.scheduling.scheduler import TURN
from tahr.engine.scheduling.waiting_queue import PATIENCE
from tahr.engine.sequences.sequence import Sequence, State


def add(model: NullModel, *sequences: Sequence) -> None:
    for seq in sequences:
        model.sched.add(seq)


def forked(model: NullModel, n: int, n_new: int) -> list[Sequence]:
    """A request of n choices, whose prompt has been computed."""
    parent = sequence(6, n_new)
    add(model, parent)
    while not parent.n_generated:
        model.step()
    children = [sequence(list(parent.tokens), n_new, n_before=i) for i in range(1, n)]
    for child in children:
        model.sched.fork(parent, child)
    return [parent, *children]


def n_over_before(model: NullModel, first: Sequence, others: list[Sequence]) -> int:
    """How many of the others are over when the first one is."""
    while not first.done:
        model.step()
    return sum(each.done for each in others)


def test_choices_let_requests_that_come_later_go_between_them() -> None:
    model = NullModel(scheduler(n_pages=100, n_seqs=2))
    choices = forked(model, 24, 6)
    later, latest = sequence([2] * 5, 6), sequence([1] * 5, 6)
    add(model, later)
    assert n_over_before(model, later, choices) <= 4, "all choices went first"
    add(model, latest)
    assert n_over_before(model, latest, choices) <= 8
    model.run(*choices)
    assert choices[-1].tokens == expected(choices[0].tokens[:7], len(choices[-1].tokens))


def test_requests_of_many_choices_take_turns() -> None:
    model = NullModel(scheduler(n_pages=100, n_seqs=2))
    ones = forked(model, 12, 6)
    others = forked(model, 12, 6)
    model.run(*others[:6])
    assert 3 <= sum(each.done for each in ones) <= 9
    model.run(*ones, *others)


def test_choices_leave_free_places_to_requests_that_wait() -> None:
    model = NullModel(scheduler(n_pages=100, n_seqs=4, prefill_chunk=6, n_prefill_tokens=6))
    parent, waiting = sequence(6, 40), sequence([2] * 5, 3)
    add(model, parent, waiting)
    model.step()
    for i in range(1, 10):
        model.sched.fork(parent, sequence(list(parent.tokens), 40, n_before=i))
    assert len(model.sched.running) == 3
    model.run(waiting)
    assert not parent.done


def test_prompts_of_one_request_take_turns_with_others_too() -> None:
    model = NullModel(scheduler(n_pages=100, n_seqs=2))
    prompts = [sequence([i % 3] * 5, 6, n_before=i) for i in range(24)]
    add(model, *prompts)
    model.step()
    later = sequence([2, 1] * 3, 6)
    add(model, later)
    assert n_over_before(model, later, prompts) <= 4


def test_a_choice_is_not_passed_over_for_ever() -> None:
    model = NullModel(scheduler(n_pages=100, n_seqs=1))
    _, child = forked(model, 2, 3)
    n_passed = 0
    while not child.done:
        if model.sched.n_waiting < 2:
            add(model, sequence([2], 1))
            n_passed += 1
        model.step()
    assert n_passed <= PATIENCE + 2


# ---- the background ------------------------------------------------------------------------------------------


def steps_with(model: NullModel, seq: Sequence, n: int) -> int:
    """In how many of the next steps a sequence has a part."""
    return sum(any(item.sequence is seq for item in model.step()) for _ in range(n))


@pytest.mark.parametrize("order", SCHEDULING_POLICIES)
@pytest.mark.parametrize("overlaps", [False, True])
def test_others_go_first_whatever_the_policy_says(order: str, overlaps: bool) -> None:
    model = NullModel(scheduler(20, n_seqs=1, order=order, overlaps=overlaps), overlaps)
    behind = sequence([1] * 4, 4, background=True, priority=9)
    model.sched.add(behind)
    for _ in range(3 * PATIENCE):  # nor does it go first after having waited long
        live = sequence(12, 3, priority=-9)
        model.sched.add(live)
        model.run(live)
        assert not behind.done
    model.run(behind)
    assert behind.tokens == expected([1] * 4, 8)


def test_it_has_no_part_in_steps_that_others_want_but_in_one_of_many() -> None:
    model = NullModel(scheduler(200, n_seqs=4))
    behind, live = sequence(4, 300, background=True), sequence([1] * 4, 2 * TURN + 50)
    model.sched.add(behind)
    assert steps_with(model, behind, 5) == 5
    model.sched.add(live)
    assert steps_with(model, behind, 2 * TURN + 10) == 2
    model.run(live)
    assert steps_with(model, behind, 5) == 5


@pytest.mark.parametrize("overlaps", [False, True])
def test_one_that_runs_makes_place(overlaps: bool) -> None:
    model = NullModel(scheduler(200, n_seqs=2, overlaps=overlaps), overlaps)
    behind = [sequence([i] * 4, 40, background=True) for i in range(2)]
    for seq in behind:
        model.sched.add(seq)
    for _ in range(5):
        model.step()
    live = sequence(8, 4)
    model.sched.add(live)
    model.run(live)
    assert live.result.stats.n_preempted == 0
    assert sorted(seq.result.stats.n_preempted for seq in behind) == [0, 1], "one place was enough"
    model.run(*behind)
    assert [seq.tokens for seq in behind] == [expected([i] * 4, 44) for i in range(2)]
    assert not model.sched.background


@pytest.mark.parametrize("overlaps", [False, True])
def test_one_that_runs_gives_its_pages(overlaps: bool) -> None:
    model = NullModel(scheduler(8, overlaps=overlaps, cached=False), overlaps)
    behind = sequence([1] * 8, 16, background=True)
    model.sched.add(behind)
    for _ in range(12):
        model.step()
    live = sequence(20, 8)
    model.sched.add(live)
    n_steps = 0
    while live.state is State.WAITING:
        model.step()
        n_steps += 1
        assert n_steps < 5, "it waits for pages that the background has"
    model.run(live)
    assert live.result.stats.n_preempted == 0 and behind.result.stats.n_preempted > 0 and not behind.done
    model.run(behind)
    assert behind.tokens == expected([1] * 8, 24)


def test_among_themselves_nobody_starves() -> None:
    model = NullModel(scheduler(20, n_seqs=1, order="sjf", n_decode_seqs=1))
    patient = sequence(19, 1, background=True)
    model.sched.add(patient)
    for _ in range(2 * PATIENCE):
        model.sched.add(sequence(4, 1, background=True))
        model.step()
    assert patient.state is not State.WAITING
    live = sequence(20, 1)
    model.sched.add(live)
    model.run(live)
    assert live.result.stats.n_preempted == 0
