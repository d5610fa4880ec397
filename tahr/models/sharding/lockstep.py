"""Ranks in one process: the same work for each, one at a time, until all have what they meet for."""

from collections.abc import Callable, Sequence
from threading import Condition, Thread
from typing import TypeVar

from tahr.backends.api import Tensor

T = TypeVar("T")
Combine = Callable[[Sequence[Tensor]], Tensor]


class Abandoned(Exception):
    """The end of a rank because another one failed."""


class Lockstep:
    """Runs work once per rank. Only one rank runs at any time, the first one first, so that ops are asked for in one
    order. At a meeting a rank waits until all have handed in their part; the last one combines them for all."""

    def __init__(self, n_ranks: int):
        self._n_ranks = n_ranks
        self._changed = Condition()
        self._turn = 0
        self._parts: list[Tensor] = []
        self._met: Tensor | None = None
        self._n_ended = 0
        self._error: BaseException | None = None

    def run(self, work: Callable[[int], T]) -> list[T]:
        """The results by rank; what a rank raises ends all of them."""
        results: dict[int, T] = {}
        threads = [
            Thread(target=self._rank, args=(rank, work, results), name="tahr-rank") for rank in range(self._n_ranks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error:
            raise self._error
        return [results[rank] for rank in range(self._n_ranks)]

    def meet(self, rank: int, part: Tensor, combine: Combine) -> Tensor:
        """Hand in a part; the result of `combine` for the parts of all ranks, in their order."""
        assert not self._n_ended, "all ranks meet equally often"
        self._parts.append(part)
        is_last = rank == self._n_ranks - 1
        if is_last:
            self._met = combine(self._parts)
            self._parts = []
        self._hand_on(rank)
        self._wait(rank)
        met = self._met
        assert met
        if is_last:
            self._met = None  # memory of rows is free once nobody holds them
        return met

    def _rank(self, rank: int, work: Callable[[int], T], results: dict[int, T]) -> None:
        try:
            self._wait(rank)
            results[rank] = work(rank)
        except Abandoned:
            pass
        except BaseException as error:  # raised again by the thread that waits for all ranks
            self._error = self._error or error
        finally:
            self._n_ended += 1
            self._hand_on(rank)

    def _wait(self, rank: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == rank or self._error)
            if self._error:
                raise Abandoned

    def _hand_on(self, rank: int) -> None:
        with self._changed:
            self._turn = (rank + 1) % self._n_ranks
            self._changed.notify_all()
