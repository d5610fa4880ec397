"""Background sequences, as those of a batch: they have steps, places and pages that no other sequence wants."""

import pytest

from null_model import NullModel, expected, scheduler, sequence
from tahr.config import SCHEDULING_POLICIES
from tahr.engine.scheduling.scheduler import TURN
from tahr.engine.scheduling.waiting_queue import PATIENCE
from tahr.engine.sequences.sequence import Sequence, State


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
