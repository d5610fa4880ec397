"""The CPU backend of one rank among several processes: products of shared matrices become those of all ranks."""

from collections.abc import Sequence

from tahr import _native as native
from tahr.backends.api import ExpertMLPs, Linear, Reduce, Tensor
from tahr.backends.cpu.backend import CpuBackend


class CpuRankBackend(CpuBackend):
    """Sums are taken in f32 in the order of the ranks, as virtual ranks take them."""

    def __init__(self, n_threads: int, meeting: native.Meeting, head_rows: Sequence[int]):
        super().__init__(n_threads)
        self._meeting = meeting
        self._head_rows = head_rows  # rows of the head by rank

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        return self._combined(super().linear(x, linear), linear.reduce)

    def experts(self, x: Tensor, scores: Tensor, mlps: ExpertMLPs) -> Tensor:
        return self._combined(super().experts(x, scores, mlps), mlps.down.reduce)

    def _combined(self, part: Tensor, how: Reduce) -> Tensor:
        if not how:
            return part
        self._queue.keep(self._meeting)
        counts = {"n_rows": part.data.count.address, "most_rows": max(1, part.data.count.limit)}
        if how == "join":
            out = self._like(part, sum(self._head_rows))
            widths = list(self._head_rows)
            places = {"x": self._use(part), "out": out.data.address}
            self._queue.tape.join_over_ranks(meeting=self._meeting, widths=widths, **counts, **places)
            return out
        out = self._like(part)
        places = {"x": self._use(part), "out": out.data.address}
        self._queue.tape.sum_over_ranks(meeting=self._meeting, width=part.width, **counts, **places)
        return out
