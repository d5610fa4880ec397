"""Which sequences advance, and by how many tokens: one token budget per step, decoding first, prompts in chunks."""

from array import array
from collections import deque
from dataclasses import dataclass

from tahr.engine.sequence import Sequence
from tahr.kv.pages import PagePool


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step may hold."""

    n_tokens: int
    n_seqs: int
    prefill_chunk: int


@dataclass(frozen=True, slots=True)
class Work:
    """Let `sequence` compute its next `n_tokens` tokens."""

    sequence: Sequence
    n_tokens: int

    @property
    def picks(self) -> bool:
        """Whether the step ends with everything known computed, so that a next token can be picked."""
        return self.n_tokens == self.sequence.behind


class Scheduler:
    """First come, first served. A sequence that finds no page takes those of the youngest, which starts over later."""

    def __init__(self, pool: PagePool, page_size: int, limits: Limits):
        self.pool = pool
        self.page_size = page_size
        self.limits = limits
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest first
        self.n_preempted = 0

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def remove(self, seq: Sequence) -> None:
        """Forget a sequence, wherever it is, and free its pages."""
        if seq in self.running:
            self.running.remove(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)
        self._drop_pages(seq)

    def next(self) -> list[Work]:
        """The work of the next step; empty when there is nothing to do."""
        work: list[Work] = []
        budget = self.limits.n_tokens
        for seq in sorted(self.running, key=lambda s: s.behind > 1):  # stable: decoding first, then by age
            if seq in self.running:  # it may have lost its pages to an older one just now
                budget -= self._let_run(seq, budget, work)
        while budget > 0 and self._admit():
            budget -= self._let_run(self.running[-1], budget, work)
        return work

    def advance(self, work: list[Work]) -> None:
        """The step has run."""
        for item in work:
            item.sequence.computed += item.n_tokens

    # ---- memory -----------------------------------------------------------------------------------------------

    def pages_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.page_size)

    def _let_run(self, seq: Sequence, budget: int, work: list[Work]) -> int:
        n = min(seq.behind, self.limits.prefill_chunk, budget)
        if n <= 0 or not self._make_room(seq, n, work):
            return 0
        work.append(Work(seq, n))
        return n

    def _make_room(self, seq: Sequence, n: int, work: list[Work]) -> bool:
        """Pages for n more tokens of seq, taken from younger sequences if need be."""
        n_missing = self.pages_for(seq.computed + n) - len(seq.pages)
        while n_missing > self.pool.n_free:
            victim = self._youngest_idle(work)
            if victim is None:
                return False
            self._preempt(victim)
            if victim is seq:
                return False
        seq.pages.extend(self.pool.take(max(0, n_missing)))
        return True

    def _youngest_idle(self, work: list[Work]) -> Sequence | None:
        busy = {item.sequence.id for item in work}
        return next((seq for seq in reversed(self.running) if seq.id not in busy), None)

    def _preempt(self, seq: Sequence) -> None:
        self.n_preempted += 1
        self.running.remove(seq)
        self._drop_pages(seq)
        self.waiting.appendleft(seq)

    def _drop_pages(self, seq: Sequence) -> None:
        self.pool.release(seq.pages)
        seq.pages = array("i")
        seq.computed = 0

    def _admit(self) -> bool:
        """Move the first in line to running, if a place and the pages for its whole text so far are free."""
        if not self.waiting or len(self.running) >= self.limits.n_seqs:
            return False
        if self.pages_for(len(self.waiting[0].tokens)) > self.pool.n_free:
            return False
        self.running.append(self.waiting.popleft())
        return True
