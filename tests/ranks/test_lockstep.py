"""Ranks in lockstep: one runs at a time, sums are in their order, and one that fails ends all."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from tahr.backends.api import Tensor
from tahr.backends.reference.backend import ReferenceBackend
from tahr.models.sharding.lockstep import Lockstep

BACKEND = ReferenceBackend()


def row(*values: float) -> Tensor:
    return BACKEND.tensor(np.array([values], np.float32))


def number(tensor: Tensor) -> float:
    return float(BACKEND.read(tensor)[0, 0])


@pytest.mark.parametrize("n_ranks", [1, 2, 5])
def test_all_get_what_the_last_one_combines(n_ranks: int) -> None:
    order: list[tuple[str, int]] = []

    def combine(parts: Sequence[Tensor]) -> Tensor:
        order.append(("all", len(parts)))
        return row(sum(number(part) * 10**i for i, part in enumerate(parts)))

    lockstep = Lockstep(n_ranks)

    def work(rank: int) -> list[float]:
        order.append(("begins", rank))
        first = lockstep.meet(rank, row(rank + 1), combine)
        order.append(("goes on", rank))
        return [number(first), number(lockstep.meet(rank, row(1), combine))]

    wanted = float(sum((i + 1) * 10**i for i in range(n_ranks)))
    ones = float(sum(10**i for i in range(n_ranks)))
    assert lockstep.run(work) == [[wanted, ones]] * n_ranks
    ranks = range(n_ranks)
    assert order == [
        *[("begins", rank) for rank in ranks],
        ("all", n_ranks),
        *[("goes on", rank) for rank in ranks],
        ("all", n_ranks),
    ]


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("n_met", [0, 1])
def test_one_that_fails_ends_all(failing: int, n_met: int) -> None:
    before = threading.active_count()
    lockstep = Lockstep(3)
    ended = []

    def work(rank: int) -> None:
        for _ in range(n_met):
            lockstep.meet(rank, row(1), lambda parts: parts[0])
        if rank == failing:
            raise ValueError("no more")
        lockstep.meet(rank, row(1), lambda parts: parts[0])
        ended.append(rank)

    with pytest.raises(ValueError, match="no more"):
        lockstep.run(work)
    assert ended == []
    assert threading.active_count() == before


def test_ranks_that_meet_unequally_often_are_an_error_and_never_wait() -> None:
    lockstep = Lockstep(2)

    def work(rank: int) -> None:
        for _ in range(1 + rank):
            lockstep.meet(rank, row(1), lambda parts: parts[0])

    with pytest.raises(AssertionError, match="equally often"):
        lockstep.run(work)


def test_a_combination_that_fails_is_raised() -> None:
    lockstep = Lockstep(2)

    def fail(parts: Sequence[Tensor]) -> Tensor:
        raise MemoryError(f"{len(parts)} parts")

    with pytest.raises(MemoryError, match="2 parts"):
        lockstep.run(lambda rank: lockstep.meet(rank, row(1), fail))
