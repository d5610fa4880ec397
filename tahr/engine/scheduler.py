"""Which sequences advance, and by how many tokens: one token budget per step, decoding first, prompts in chunks.

Memory is not promised ahead: a sequence is let in when its text so far fits, and takes a page whenever it fills one. If
there is none, the last by rank loses its pages, keeps its tokens, and catches up later.
"""

from bisect import insort
from dataclasses import dataclass
from math import ceil
from operator import attrgetter
from time import perf_counter
from typing import NamedTuple

from tahr.engine.line import Line
from tahr.engine.policies import POLICIES
from tahr.engine.sequence import Sequence, State
from tahr.kv.pages import PagePool, no_pages
from tahr.kv.prefix import PrefixCache

RANK, LAST_STEP = attrgetter("rank"), attrgetter("last_step")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step may hold."""

    n_seqs: int  # sequences that run at once
    n_prefill_seqs: int  # of them, those that read in one step
    n_decode_seqs: int  # of them, those that write in one step
    prefill_chunk: int  # tokens of one sequence
    n_prefill_tokens: int  # tokens of all that read; the first one gets its chunk even if that is more
    n_scored: int = 64  # prompt tokens whose logits are wanted
    admit_below: float = 0.9  # share of the pool that may be filled by letting sequences in; the rest is for growing

    @property
    def n_tokens(self) -> int:
        return max(self.prefill_chunk, self.n_prefill_tokens) + self.n_decode_seqs

    @property
    def n_rows(self) -> int:
        return self.n_prefill_seqs + self.n_decode_seqs + self.n_scored


class Work(NamedTuple):
    """Let `sequence` compute its next `n_tokens` tokens."""

    sequence: Sequence
    n_tokens: int
    picks: bool  # everything known is then computed, so that a next token can be picked
    n_rows: int  # the logits of so many of its last tokens are wanted
    copy: tuple[int, int] | None  # a page to copy before the step, and where to: others still need the first


class Budget:
    """What is left of a step for sequences that read."""

    def __init__(self, limits: Limits):
        self.n_seqs = limits.n_prefill_seqs
        self.n_tokens = max(limits.n_prefill_tokens, limits.prefill_chunk)
        self.n_scored = limits.n_scored
        self._limits = limits

    @property
    def open(self) -> bool:
        return self.n_seqs > 0 and self.n_tokens > 0

    def grant(self, seq: Sequence) -> int:
        """How many tokens a sequence may compute."""
        n = min(seq.behind, self._limits.prefill_chunk, self.n_tokens)
        return min(n, self.n_scored) if seq.scoring else n

    def spend(self, seq: Sequence, n: int) -> None:
        if self.n_seqs == self._limits.n_prefill_seqs:
            self.n_tokens = self._limits.n_prefill_tokens  # whatever the budget is, the first one was within it
        self.n_seqs -= 1
        self.n_tokens -= n
        self.n_scored -= n if seq.scoring else 0


class Scheduler:
    """Lets sequences catch up with their tokens, in the order of a policy, within the limits of a step and the pool."""

    def __init__(
        self, pool: PagePool, page_size: int, limits: Limits, prefix: PrefixCache | None = None, order: str = "fcfs"
    ):
        self.pool = pool
        self.page_size = page_size
        self.limits = limits
        self.prefix = prefix
        self.line = Line(POLICIES[order])
        self.running: list[Sequence] = []  # in the order of their ranks
        self.n_steps = 0
        self.n_preempted = 0
        self._reserve = pool.n_pages - ceil(pool.n_pages * limits.admit_below)

    def add(self, seq: Sequence) -> None:
        """Queue a sequence."""
        if self.prefix and seq.params.cache_prompt:
            seq.names = self.prefix.names(seq.adapter, seq.params.cache_salt)
        self.line.add(seq)

    def remove(self, seq: Sequence) -> None:
        """Forget a sequence, wherever it is, and free its pages."""
        if seq in self.running:
            self.running.remove(seq)
        self.line.remove(seq)
        self._drop_pages(seq)

    def next(self) -> list[Work]:
        """The work of the next step; empty when there is nothing to do."""
        self.n_steps += 1
        work: list[Work] = []
        writing: list[Sequence] = []
        reading: list[Sequence] = []
        for seq in self.running:
            (writing if len(seq.tokens) - seq.computed == 1 else reading).append(seq)
        self._let_write(writing, work)
        self._let_read(reading, work)
        return work

    def advance(self, work: list[Work]) -> int:
        """The step has run; how many of its tokens were computed one by one, by sequences that write."""
        n_decoded = 0
        for seq, n, picks, _, _ in work:
            if seq.finish_reason:
                continue  # cancelled meanwhile
            seq.computed += n
            if seq.state is State.DECODING:
                n_decoded += n
            elif picks:
                seq.enter(State.DECODING)
            if seq.names and seq.computed // self.page_size > seq.names.n_stored:
                self._store(seq)
        return n_decoded

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child`, which has the same tokens, go on from where `parent` is; it waits if there is no place."""
        child.names = parent.names and parent.names.fork()
        child.rank = (*parent.rank, child.id)
        child.stats.started_at = parent.stats.started_at
        child.stats.n_cached_tokens = parent.stats.n_cached_tokens
        if len(self.running) >= self.limits.n_seqs:
            self._drop_pages(child)
            self.line.add(child)
            return
        self.pool.share(parent.pages)
        child.pages, child.computed = parent.pages[:], parent.computed
        self._run(child)
        if not child.behind:
            child.enter(State.DECODING)

    def truncate(self, seq: Sequence, n_tokens: int) -> None:
        """Take back all tokens of a sequence but the first `n_tokens`."""
        del seq.tokens[n_tokens:]
        n_pages = self.pages_for(min(seq.computed, n_tokens))
        self.pool.release(seq.pages[n_pages:])
        seq.pages = seq.pages[:n_pages]
        seq.computed = min(seq.computed, n_tokens)
        if seq.names:
            seq.names.cut(n_tokens // self.page_size)

    def distrust(self, seq: Sequence) -> None:
        """Nobody shall reuse what a failed sequence computed."""
        for page in seq.pages:
            self.pool.forget(page)

    def pages_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.page_size)

    # ---- whose turn it is -------------------------------------------------------------------------------------

    def _let_write(self, writing: list[Sequence], work: list[Work]) -> None:
        """One token each; if not all may write in one step, they take turns."""
        limit = self.limits.n_decode_seqs
        for seq in writing if len(writing) <= limit else sorted(writing, key=LAST_STEP):
            if len(work) == limit:
                return
            if seq.state is State.PREEMPTED:  # a sequence before it has needed its pages
                continue
            if self._may_write(seq):  # almost always
                work.append(Work(seq, 1, True, 1, None))
                seq.last_step = self.n_steps
            else:
                self._let_run(seq, 1, work)

    def _let_read(self, reading: list[Sequence], work: list[Work]) -> None:
        """Prompts that have begun come first, then new ones as long as there is room."""
        budget = Budget(self.limits)
        for seq in reading:
            if seq.state is not State.PREEMPTED:
                self._read(seq, budget, work)
        while budget.open and (admitted := self._admit()):
            self._read(admitted, budget, work)

    def _read(self, seq: Sequence, budget: Budget, work: list[Work]) -> None:
        n = budget.grant(seq) if budget.open else 0
        if n and self._let_run(seq, n, work):
            budget.spend(seq, n)

    def _let_run(self, seq: Sequence, n: int, work: list[Work]) -> bool:
        copy = None
        if self._n_missing(seq, n):
            if not self._make_room(seq, n, work):
                return False
            copy = self._own_page(seq)
            seq.pages.extend(self.pool.take(max(0, self.pages_for(seq.computed + n) - len(seq.pages))))
        picks = n == seq.behind
        work.append(Work(seq, n, picks, n if seq.scoring else int(picks), copy))
        seq.last_step = self.n_steps
        return True

    # ---- memory -----------------------------------------------------------------------------------------------

    def _admit(self) -> Sequence | None:
        """Let the first in line run, if there is a place and its whole text so far fits beside the others' growth."""
        seq = self.line.first
        if seq is None or len(self.running) >= self.limits.n_seqs:
            return None
        found = self.prefix.find(seq.names, seq.tokens) if self.prefix and seq.names and not seq.scoring else []
        self.pool.share(found)
        # The last token is computed in any case, because its logits are wanted: in a page of its own.
        n_reused = min(len(found) * self.page_size, len(seq.tokens) - 1)
        n_missing = self.pages_for(len(seq.tokens)) - n_reused // self.page_size
        if n_missing > self.pool.n_free - (self._reserve if self.running else 0):
            self.pool.release(found)
            return None
        self.line.pop()
        self._begin(seq, found, n_reused)
        return seq

    def _begin(self, seq: Sequence, found: list[int], n_reused: int) -> None:
        seq.pages.extend(found)
        seq.computed = n_reused
        if seq.names:
            assert self.prefix
            self.prefix.count(n_reused)
            seq.names.n_stored = n_reused // self.page_size
        if seq.state is State.WAITING:
            seq.stats.n_cached_tokens = min(n_reused, seq.n_prompt)
        self._run(seq)
        n_rest = self.pages_for(len(seq.tokens)) - len(seq.pages)
        seq.pages.extend(self.pool.take(n_rest))  # a prompt that has begun will not stop half-way for want of pages

    def _run(self, seq: Sequence) -> None:
        seq.enter(State.PREFILLING)
        seq.stats.started_at = seq.stats.started_at or perf_counter()
        insort(self.running, seq, key=RANK)

    def _may_write(self, seq: Sequence) -> bool:
        """Whether it has a page for its next token that nobody else needs."""
        index = seq.computed // self.page_size
        return index < len(seq.pages) and self.pool.writable(seq.pages[index])

    def _n_missing(self, seq: Sequence, n: int) -> int:
        """Pages to take before n tokens can be computed: those not there yet, and one for a page that is shared."""
        begun = seq.computed // self.page_size < len(seq.pages)
        n_fresh = self.pages_for(seq.computed + n) - len(seq.pages)
        return max(0, n_fresh) + (begun and not self._may_write(seq))

    def _make_room(self, seq: Sequence, n: int, work: list[Work]) -> bool:
        """Let the last by rank lose their pages until there are enough; one of them may be the sequence itself."""
        while self._n_missing(seq, n) > self.pool.n_free:
            victim = self._last_idle(work)
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _own_page(self, seq: Sequence) -> tuple[int, int] | None:
        """Give the sequence its own copy of the page it is going to write to, if others need that page."""
        index = seq.computed // self.page_size
        if index >= len(seq.pages) or self._may_write(seq):
            return None
        (mine,) = self.pool.take(1)
        shared = seq.pages[index]
        self.pool.release([shared])
        seq.pages = seq.pages[:]  # another table: whoever has seen the old one must look again
        seq.pages[index] = mine
        return shared, mine

    def _last_idle(self, work: list[Work]) -> Sequence:
        """The last by rank of those that are not in this step yet."""
        busy = {item.sequence.id for item in work}
        return next(seq for seq in reversed(self.running) if seq.id not in busy)

    def _preempt(self, seq: Sequence) -> None:
        self.n_preempted += 1
        seq.stats.n_preempted += 1
        self.running.remove(seq)
        self._drop_pages(seq)
        seq.enter(State.PREEMPTED)
        self.line.add(seq)

    def _drop_pages(self, seq: Sequence) -> None:
        self.pool.release(seq.pages)
        seq.pages = no_pages()
        seq.computed = 0
        if seq.names:
            seq.names.n_stored = 0

    def _store(self, seq: Sequence) -> None:
        assert self.prefix and seq.names
        seq.pages = self.prefix.store(seq.names, seq.tokens, seq.pages, seq.computed)
