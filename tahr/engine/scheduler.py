"""Which sequences advance, and by how many tokens: one token budget per step, decoding first, prompts in chunks.

Memory is not promised ahead: a sequence is let in when its text so far fits, and takes a page whenever it fills one. If
there is none, the last by rank loses its pages, keeps its tokens, and catches up later.
"""

from bisect import insort
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from math import ceil
from operator import attrgetter
from time import perf_counter
from typing import NamedTuple

from tahr.engine.policies import POLICIES
from tahr.engine.sequence import Sequence, State
from tahr.engine.waiting_queue import Line
from tahr.kv.pages import PagePool, pages_for
from tahr.kv.prefix import PrefixCache, tokens_reused
from tahr.kv.tables import PageCopy, PageTable

RANK, LAST_STEP = attrgetter("rank"), attrgetter("last_step")
PATIENCE = 16  # steps that one who writes lets others read


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step may hold."""

    n_seqs: int  # sequences that run at once
    n_prefill_seqs: int  # of them, those that read in one step
    n_decode_seqs: int  # of them, those that write in one step
    prefill_chunk: int  # tokens of one sequence
    n_prefill_tokens: int  # tokens of all that read; the first one gets its chunk even if that is more
    n_active_prefill_tokens: int | None = None  # the most of either while others write, so that these wait less
    n_writing_first: int = 0  # while fewer write, they wait until what can be read is read
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
    copies: ListOf[PageCopy] = ()  # to make before the step


class Budget:
    """What is left of a step for sequences that read."""

    def __init__(self, limits: Limits, n_most: int | None = None):
        self.n_seqs = limits.n_prefill_seqs
        self.n_scored = limits.n_scored
        self._limits = limits
        self._chunk = min(limits.prefill_chunk, n_most or limits.prefill_chunk)
        self._n_together = min(limits.n_prefill_tokens, n_most or limits.n_prefill_tokens)
        self.n_tokens = max(self._n_together, self._chunk)

    @property
    def open(self) -> bool:
        return self.n_seqs > 0 and self.n_tokens > 0

    def grant(self, seq: Sequence) -> int:
        """How many tokens a sequence may compute."""
        n = min(seq.behind, self._chunk, self.n_tokens)
        return min(n, self.n_scored) if seq.scoring else n

    def spend(self, seq: Sequence, n: int) -> None:
        if self.n_seqs == self._limits.n_prefill_seqs:
            self.n_tokens = self._n_together  # whatever the budget is, the first one was within it
        self.n_seqs -= 1
        self.n_tokens -= n
        self.n_scored -= n if seq.scoring else 0


class Scheduler:
    """Lets sequences catch up with their tokens, in the order of a policy, within the limits of steps and pools."""

    def __init__(self, pools: ListOf[PagePool], limits: Limits, prefix: PrefixCache | None = None, order: str = "fcfs"):
        self.pools = pools
        self.page_size = pools[0].page_size
        self.limits = limits
        self.prefix = prefix
        self.line = Line(POLICIES[order])
        self.running: list[Sequence] = []  # in the order of their ranks
        self.n_steps = 0
        self.n_preempted = 0
        self._reserves = [reserve(pool, limits) for pool in pools]

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
        writing = [seq for seq in self.running if len(seq.tokens) - seq.computed == 1]
        reading = [] if len(writing) == len(self.running) else [seq for seq in self.running if seq.behind != 1]
        if self._reads_first(writing):
            self._let_read(reading, work)
        if not work:
            self._let_write(writing, work)
            self._let_read(reading, work)
        return work

    def advance(self, work: list[Work]) -> int:
        """The step has run; how many of its tokens were computed one by one, by sequences that write."""
        n_decoded, page_size = 0, self.page_size
        for seq, n, picks, _, _ in work:
            if seq.finish_reason:
                continue  # cancelled meanwhile
            seq.computed += n
            if seq.state is State.DECODING:
                n_decoded += n
            elif picks:
                seq.enter(State.DECODING)
            names = seq.names
            if names and seq.computed >= (names.n_stored + 1) * page_size:
                assert self.prefix
                self.prefix.store(names, seq.tokens, seq.tables, seq.computed)
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
        child.tables, child.computed = [table.fork() for table in parent.tables], parent.computed
        parent.n_owned = 0  # the page it writes to is shared from now on
        self._run(child)
        if not child.behind:
            child.enter(State.DECODING)

    def truncate(self, seq: Sequence, n_tokens: int) -> None:
        """Take back all tokens of a sequence but the first `n_tokens`."""
        del seq.tokens[n_tokens:]
        self.rewind(seq, min(seq.computed, n_tokens))

    def rewind(self, seq: Sequence, n_computed: int) -> None:
        """Let a sequence compute again what comes after its first tokens: all of it, if a window has left those."""
        if seq.names:
            seq.names.cut(n_computed // self.page_size)
        if not all(table.reaches(n_computed) for table in seq.tables):
            self._drop_pages(seq)
            return
        for table in seq.tables:
            table.cut(pages_for(n_computed, self.page_size))
        seq.computed, seq.n_owned = n_computed, 0

    def distrust(self, seq: Sequence) -> None:
        """Nobody shall reuse what a failed sequence computed."""
        for table in seq.tables:
            for page in table.held:
                table.pool.forget(page)
        if self.prefix and seq.names:
            self.prefix.forget(seq.names, seq.tokens)  # also what it holds no more, because a window has left it

    def holds(self, n_tokens: int) -> bool:
        """Whether a text of so many tokens fits into the pools if it is alone."""
        return all(pool.n_wanted(0, n_tokens) <= pool.n_pages for pool in self.pools)

    # ---- whose turn it is -------------------------------------------------------------------------------------

    def _reads_first(self, writing: list[Sequence]) -> bool:
        """Whether too few write for a step of theirs to pay; nobody waits for others' prompts for long."""
        if len(writing) >= self.limits.n_writing_first:
            return False
        return all(self.n_steps - seq.last_step <= PATIENCE for seq in writing)

    def _let_write(self, writing: list[Sequence], work: list[Work]) -> None:
        """One token each; if not all may write in one step, they take turns."""
        limit, n_steps = self.limits.n_decode_seqs, self.n_steps
        for seq in writing if len(writing) <= limit else sorted(writing, key=LAST_STEP):
            if len(work) == limit:
                return
            if seq.state is State.PREEMPTED:  # a sequence before it has needed its pages
                continue
            if seq.computed < seq.n_owned or self._may_write(seq):  # almost always
                work.append(Work(seq, 1, True, 1))
                seq.last_step = n_steps
            else:
                self._let_run(seq, 1, work)

    def _let_read(self, reading: list[Sequence], work: list[Work]) -> None:
        """Prompts that have begun come first, then new ones as long as there is room."""
        budget = Budget(self.limits, self.limits.n_active_prefill_tokens if work else None)
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
        copies: ListOf[PageCopy] = ()
        if any(table.n_missing(seq.computed, len(seq.tokens)) for table in seq.tables):
            if not self._make_room(seq, work):
                return False
            copies = self._grow(seq)
        picks = n == seq.behind
        work.append(Work(seq, n, picks, n if seq.scoring else int(picks), copies))
        seq.last_step = self.n_steps
        return True

    # ---- memory -----------------------------------------------------------------------------------------------

    def _admit(self) -> Sequence | None:
        """Let the first in line run, if there is a place and its whole text so far fits beside the others' growth."""
        seq = self.line.first
        if seq is None or len(self.running) >= self.limits.n_seqs:
            return None
        found = self._find(seq)
        n_reused = tokens_reused(len(found[0].pages), self.page_size, len(seq.tokens))
        if not self._room_for(found, n_reused, len(seq.tokens)):
            for table in found:
                table.cut(0)
            return None
        self.line.pop()
        self._begin(seq, found, n_reused)
        return seq

    def _find(self, seq: Sequence) -> list[PageTable]:
        """Tables to begin with: what is known of its text, unless all of it is to be looked at."""
        if self.prefix and seq.names and not seq.scoring:
            return self.prefix.find(seq.names, seq.tokens)
        return [PageTable(pool) for pool in self.pools]

    def _room_for(self, tables: list[PageTable], n_computed: int, n_tokens: int) -> bool:
        return all(
            table.n_missing(n_computed, n_tokens) <= table.pool.n_free - (n_left if self.running else 0)
            for table, n_left in zip(tables, self._reserves, strict=True)
        )

    def _begin(self, seq: Sequence, found: list[PageTable], n_reused: int) -> None:
        seq.tables = found
        seq.computed = n_reused
        if seq.names:
            assert self.prefix
            self.prefix.count(n_reused)
            seq.names.n_stored = n_reused // self.page_size
        if seq.state is State.WAITING:
            seq.stats.n_cached_tokens = min(n_reused, seq.n_prompt)
        self._run(seq)
        for table in found:  # a prompt that has begun will not stop half-way for want of pages
            table.take(n_reused, len(seq.tokens))

    def _run(self, seq: Sequence) -> None:
        seq.enter(State.PREFILLING)
        seq.stats.started_at = seq.stats.started_at or perf_counter()
        insort(self.running, seq, key=RANK)

    def _may_write(self, seq: Sequence) -> bool:
        """Whether it has pages for its next token that nobody else needs."""
        place = seq.computed // self.page_size
        owned = all(table.may_write(place) for table in seq.tables)
        seq.n_owned = (place + 1) * self.page_size if owned else 0
        return owned

    def _make_room(self, seq: Sequence, work: list[Work]) -> bool:
        """Let the last by rank lose their pages until there are enough; one of them may be the sequence itself."""
        for table in seq.tables:
            table.leave_behind(seq.computed)
        while any(table.n_missing(seq.computed, len(seq.tokens)) > table.pool.n_free for table in seq.tables):
            victim = self._last_idle(work)
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _grow(self, seq: Sequence) -> list[PageCopy]:
        """Take the pages that are missing; those to copy, because others need the ones it is going to write to."""
        owned = [table.own(seq.computed) for table in seq.tables]
        for table in seq.tables:
            table.take(seq.computed, len(seq.tokens))
        return [PageCopy(group, *pages) for group, pages in enumerate(owned) if pages]

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
        for table in seq.tables:
            table.cut(0)
        seq.computed = seq.n_owned = 0
        if seq.names:
            seq.names.n_stored = 0


def reserve(pool: PagePool, limits: Limits) -> int:
    """Pages of a pool that letting sequences in must leave, so that those that run can grow."""
    if pool.n_pages >= limits.n_seqs * pool.most_held:
        return 0  # there is room for everybody
    return pool.n_pages - ceil(pool.n_pages * limits.admit_below)
