"""Requests take turns: many choices or prompts of one keep no other waiting until all of them are over."""

from null_model import NullModel, expected, scheduler, sequence
from tahr.engine.scheduling.waiting_queue import PATIENCE
from tahr.engine.sequences.sequence import Sequence


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
