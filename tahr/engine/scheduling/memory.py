"""The sequences that wait and run, and what those that run hold: pages, state slots, token slots.

Memory is not promised ahead: a sequence is admitted when its text so far fits, and takes a page whenever it fills one.
If there is none, the last by rank is preempted: it loses its pages, keeps its tokens, and is computed again later.
"""

from bisect import insort
from collections.abc import Sequence as ListOf
from operator import attrgetter
from time import perf_counter
from typing import TYPE_CHECKING

from tahr.engine.scheduling.policies import POLICIES
from tahr.engine.scheduling.row_memory import RowMemory
from tahr.engine.scheduling.waiting_queue import WaitingQueue
from tahr.engine.scheduling.work import SchedulerLimits, StepWork
from tahr.engine.sequences.sequence import Sequence, State
from tahr.engine.sequences.shares import Shares
from tahr.errors import KvCacheFull
from tahr.executor.output import Output
from tahr.kv.pages import PagePool, pages_for
from tahr.kv.prefix import PrefixCache, tokens_reused
from tahr.kv.row_slots import RowSlots
from tahr.kv.slots import StateSlots, TokenSlots
from tahr.kv.tables import PageCopy, PageTable, n_short

if TYPE_CHECKING:
    from tahr.engine.tiers.tiers import PageTiers  # arrays are imported there

RANK = attrgetter("queueing.rank")


class SequenceMemory:
    """Admits sequences, gives them pages and slots, and takes these back: at their end, or for others."""

    def __init__(
        self,
        pools: ListOf[PagePool],
        limits: SchedulerLimits,
        prefix: PrefixCache | None = None,
        order: str = "fcfs",
        slots: StateSlots | None = None,
        row_slots: RowSlots | None = None,
    ):
        assert not (prefix and slots) or prefix.checkpoints is not None, "pages without states are of no use"
        self.pools = pools
        self.slots = slots  # None: no layer has a state
        self.page_size = pools[0].page_size if pools else 1
        self.limits = limits
        self.prefix = prefix
        self.shares = Shares()
        self.queues = {output: WaitingQueue(POLICIES[order], self.shares) for output in Output}
        self.running: list[Sequence] = []  # sequences in the order of their ranks
        self.token_slots = TokenSlots(2 * limits.n_seqs)  # half of them may wait for a step to land
        self.n_preempted = 0
        self._n_running = dict.fromkeys(Output, 0)
        self.background: set[int] = set()  # ids of all background sequences, waiting or running
        self.holds_background = False  # others want the step
        self.rows = RowMemory(row_slots, self._n_reused) if row_slots else None  # None: the model reads no rows
        self.tiers: PageTiers | None = None  # None: pages are nowhere but in the pools
        self._slots = [each for each in (self.token_slots, slots, row_slots) if each]
        self._reserves = [limits.reserve(pool) for pool in pools]
        self._n_launched = 0  # steps
        self._n_landed = 0

    @property
    def n_waiting(self) -> int:
        n_for_rows = self.rows.n_waiting if self.rows else 0
        n_for_pages = self.tiers.n_waiting if self.tiers else 0
        return sum(map(len, self.queues.values())) + n_for_rows + n_for_pages

    def add(self, seq: Sequence) -> None:
        """Queue a sequence."""
        if self.prefix and seq.params.cache_prompt:
            seq.memory.hashes = self.prefix.hashes(seq.adapters.digest, seq.params.cache_salt, seq.rows.spans)
        if seq.queueing.is_background:
            self.background.add(seq.id)
        self._enqueue(seq)

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out, running or waiting, and release its pages."""
        self._stop_running(seq)
        self.queues[seq.wanted.output].remove(seq)
        self.background.discard(seq.id)
        self._release(seq)

    def holds(self, n_tokens: int) -> bool:
        """Whether a text of so many tokens fits into the pools if it is alone."""
        return all(pool.n_wanted(0, n_tokens) <= pool.n_pages for pool in self.pools)

    # ---- steps in flight ---------------------------------------------------------------------------------------------

    def launched(self) -> None:
        """The scheduled work is in flight: what is released from now on is held until it has landed."""
        self._n_launched += 1
        for pool in (*self.pools, *self._slots):
            pool.launched()

    def landed(self) -> None:
        """The oldest step in flight is over, well or badly."""
        self._n_landed += 1
        for pool in (*self.pools, *self._slots):
            pool.landed()

    # ---- changing a sequence -----------------------------------------------------------------------------------------

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child`, which has the same tokens, continue from where `parent` is.

        It waits without a free place, or if those that wait already and come before it need all that are free.
        """
        assert parent.scheduled == parent.computed, "a sequence in flight cannot be forked"
        child.memory.hashes = parent.memory.hashes and parent.memory.hashes.fork()
        if child.queueing.is_background:
            self.background.add(child.id)
        queue = self.queues[child.wanted.output]
        queue.rank(child, parent.queueing.turn - parent.queueing.n_before)
        child.result.stats.started_at = parent.result.stats.started_at
        child.result.stats.n_cached_tokens = parent.result.stats.n_cached_tokens
        if not self._has_spare_place(child) or parent.state is State.PREEMPTED:
            self._release(child)
            self._enqueue(child)
            return
        if self.rows and child.rows.seen_by_all:
            self.rows.share(child)
        child.memory.tables = [table.fork() for table in parent.memory.tables]
        child.computed = child.scheduled = parent.computed
        parent.memory.n_owned = 0  # the page it writes to is shared from now on
        self._start(child)
        if self.slots:
            self.slots.copy(parent.memory.slot, child.memory.slot)
        if not child.n_left:
            child.enter(State.DECODING)

    def extend(self, seq: Sequence, tokens: ListOf[int]) -> None:
        """Give a sequence that stays more tokens to compute."""
        seq.tokens.extend(tokens)
        if seq.queueing.swapped_out:
            seq.queueing.swapped_out = False
            self._enqueue(seq)

    def reserve(self, seq: Sequence, n: int) -> int:
        """Take pages for n guesses after the tokens of a sequence; for how many there are pages.

        Guesses take no page that another running sequence may need in this step, and none is copied for them.
        """
        n_here = len(seq.tokens) + n
        if n_here <= seq.memory.n_owned:
            return n
        n_others = len(self.running)
        if any(t.n_missing(seq.computed, seq.scheduled, n_here) > t.pool.n_free - n_others for t in seq.memory.tables):
            n_here = min(n_here, min(len(table.pages) for table in seq.memory.tables) * self.page_size)
        for table in seq.memory.tables:
            table.release_behind(seq.computed)
            table.take(seq.computed, n_here)
        fits = n_here > len(seq.tokens) and self._owns_pages(seq, n_here)
        return n_here - len(seq.tokens) if fits else 0

    def take_pages(self, seq: Sequence) -> None:
        """Let a new sequence run with pages for all of its tokens, whose keys and values its owner writes."""
        seq.memory.tables = [PageTable(pool) for pool in self.pools]
        if not self._has_place(seq.wanted.output, swaps=True):
            raise KvCacheFull("All sequences that may run at once are at work: wait for one, or raise max_batch_size.")
        while missing := n_short(seq.memory.tables, seq.computed, seq.scheduled, len(seq.tokens)):
            if not self._swap_one_out():
                n, pool = missing[0]
                raise KvCacheFull(f"The KV pool has {pool.n_free} free pages, {n} too few for the text.")
        for table in seq.memory.tables:
            table.take(0, len(seq.tokens))
        seq.computed = seq.scheduled = len(seq.tokens)
        seq.queueing.rank = (1, 0, seq.queueing.turn, seq.id)
        self._start(seq)
        seq.enter(State.DECODING)

    def truncate(self, seq: Sequence, n_tokens: int) -> None:
        """Drop all tokens of a sequence but the first `n_tokens`."""
        del seq.tokens[n_tokens:]
        self.rewind(seq, min(seq.computed, n_tokens))

    def rewind(self, seq: Sequence, n_computed: int) -> None:
        """Let a sequence compute again what comes after its first tokens.

        It computes all of its text again if a window has left those tokens, or if it has a state: that cannot go back.
        """
        if seq.memory.hashes:
            seq.memory.hashes.cut(n_computed // self.page_size)
        is_gone = self.slots and n_computed < seq.computed
        if is_gone or not all(table.reaches(n_computed) for table in seq.memory.tables):
            self._release_pages(seq)
            return
        for table in seq.memory.tables:
            table.cut(pages_for(n_computed, self.page_size))
        seq.computed = seq.scheduled = n_computed
        seq.memory.n_owned = 0

    def invalidate(self, seq: Sequence) -> None:
        """Remove what a failed sequence computed from the prefix cache."""
        for table in seq.memory.tables:
            for page in table.held:
                table.pool.drop_hash(page)
        if self.tiers and seq.memory.hashes:
            self.tiers.forget(seq.memory.hashes)
        if self.prefix and seq.memory.hashes:
            self.prefix.remove(seq.memory.hashes, seq.tokens)  # pages that a window has left are released already

    # ---- admitting ---------------------------------------------------------------------------------------------------

    def _admit(self, output: Output) -> Sequence | None:
        """Start the first waiting sequence, if there is a place and its text so far fits beside the others' growth."""
        seq = self.queues[output].first
        if seq is None or seq.queueing.blocked_until > self._n_landed:
            return None
        if seq.queueing.is_background and self.holds_background:
            return None
        while not self._has_place(output, swaps=True):
            if not self._preempt_background(output):
                return None
        found = self._lookup(seq)
        n_reused = tokens_reused(len(found[0].pages), self.page_size, len(seq.tokens)) if found else 0
        if self.rows and seq.rows.spans and not self.rows.has_rows(seq, n_reused):
            self._let_wait_for_rows(seq, found)
            return None
        while not self._has_pages_for(found, n_reused, len(seq.tokens)):
            if not self._swap_one_out() and not self._preempt_background():
                for table in found:
                    table.cut(0)
                return None
        is_cached = seq.memory.hashes and seq.wanted.first_row >= len(seq.tokens)
        if self.tiers and is_cached and self._fetches(self.tiers, seq, found):
            return self._admit(output)
        self.queues[output].pop()
        self._begin(seq, found, n_reused)
        return seq

    def _preempt_background(self, output: Output | None = None) -> bool:
        """Preempt a background sequence, which has no part in this step, for one of the others; whether there was one.

        With an `output`, one of that kind if there is any. What steps in flight still hold is waited for first.
        """
        is_leaving = any(pool.n_leaving for pool in self.pools) or (self.slots is not None and self.slots.n_leaving > 0)
        if not self.holds_background or is_leaving:
            return False
        found = [seq for seq in reversed(self.running) if seq.queueing.is_background]
        victim = next((seq for seq in found if seq.wanted.output is output), next(iter(found), None))
        if victim:
            self._preempt(victim)
        return victim is not None

    def _fetches(self, tiers: "PageTiers", seq: Sequence, found: list[PageTable]) -> bool:
        """Have pages fetched that are elsewhere; whether they have come already, or the sequence waits for them."""
        n_loaded = tiers.places.stats.n_loaded
        waits = tiers.begin(seq, len(found[0].pages))
        if waits:
            self.queues[seq.wanted.output].remove(seq)
        if waits or tiers.places.stats.n_loaded != n_loaded:
            for table in found:
                table.cut(0)
            return True
        return False

    def _queue_fetched(self, tiers: "PageTiers") -> None:
        """Queue the sequences whose pages have come."""
        for seq in tiers.take_ready():
            self.queues[seq.wanted.output].add(seq)

    def _enqueue(self, seq: Sequence) -> None:
        """Let a sequence wait in the queue, or first for the rows that it reads."""
        queue = self.queues[seq.wanted.output]
        if self.rows and (seq.rows.spans or seq.wanted.source):
            queue.join(seq)
            self.rows.add(seq)
        else:
            queue.add(seq)

    def _queue_ready(self, rows: RowMemory) -> None:
        """Queue the sequences whose rows are there."""
        for seq in rows.take_ready():
            self.queues[seq.wanted.output].add(seq)

    def _let_wait_for_rows(self, seq: Sequence, found: list[PageTable]) -> None:
        """A queued sequence needs more rows than it did: pages that were to spare it some have been evicted."""
        for table in found:
            table.cut(0)
        self.queues[seq.wanted.output].remove(seq)
        assert self.rows
        self.rows.release(seq)
        self.rows.add(seq)

    def _n_reused(self, seq: Sequence) -> int:
        """How many tokens of a waiting sequence need not be computed, as far as is known now."""
        if self.prefix and seq.memory.hashes and seq.wanted.first_row >= len(seq.tokens):
            return self.prefix.n_reused(seq.memory.hashes, seq.tokens)
        return 0

    def _has_place(self, output: Output, swaps: bool = False) -> bool:
        """Whether one more sequence may run; if it `swaps`, an idle one may have to go.

        A slot released in flight is waited for until the step has landed.
        """
        if self._n_running[output] >= self.limits.n_seqs and not (swaps and self._swap_one_out(output)):
            return False
        slots = self.slots
        return slots is None or slots.n_free > 0 or (not slots.n_leaving and self._swap_one_out() and slots.n_free > 0)

    def _has_spare_place(self, seq: Sequence) -> bool:
        """Whether one more sequence may run besides all that wait and come before it."""
        queue = self.queues[seq.wanted.output]
        n_kept = len(queue) if queue.comes_before(seq) else 0
        return self._n_running[seq.wanted.output] + n_kept < self.limits.n_seqs and self._has_place(seq.wanted.output)

    def _lookup(self, seq: Sequence) -> list[PageTable]:
        """Page tables to begin with: the cached beginning of its text, unless rows of it are wanted."""
        if self.prefix and seq.memory.hashes and seq.wanted.first_row >= len(seq.tokens):
            return self.prefix.lookup(seq.memory.hashes, seq.tokens)
        return [PageTable(pool) for pool in self.pools]

    def _has_pages_for(self, tables: list[PageTable], n_computed: int, n_tokens: int) -> bool:
        return all(
            table.n_missing(n_computed, n_computed, n_tokens) <= table.pool.n_free - (n_left if self.running else 0)
            for table, n_left in zip(tables, self._reserves, strict=True)
        )

    def _begin(self, seq: Sequence, found: list[PageTable], n_reused: int) -> None:
        seq.memory.tables = found
        seq.computed = seq.scheduled = n_reused
        if seq.memory.hashes:
            assert self.prefix
            self.prefix.count(n_reused)
            seq.memory.hashes.n_inserted = n_reused // self.page_size
        if seq.state is State.WAITING:  # one that was preempted does not pay for it
            seq.queueing.share.n_tokens += len(seq.tokens) - n_reused
            seq.result.stats.n_cached_tokens = min(n_reused, seq.n_prompt)
        self._start(seq)
        if self.slots and self.prefix and seq.memory.hashes:
            seq.memory.checkpoints = self.prefix.checkpoints_in(seq.memory.hashes, seq.tokens, n_reused)
            self.prefix.restore_state(seq.memory.hashes, seq.tokens, n_reused, seq.memory.slot)
        for table in found:  # a prompt that has begun will not stop half-way for want of pages
            table.take(n_reused, len(seq.tokens))

    def _start(self, seq: Sequence) -> None:
        seq.enter(State.PREFILLING)
        seq.result.stats.started_at = seq.result.stats.started_at or perf_counter()
        insort(self.running, seq, key=RANK)
        self._n_running[seq.wanted.output] += 1
        seq.ahead.token_slot = self.token_slots.take() if seq.reply.request else 0
        if self.slots:
            seq.memory.slot = self.slots.take()

    # ---- pages of a running sequence ---------------------------------------------------------------------------------

    def _gets_pages(self, seq: Sequence, end: int, work: StepWork) -> bool:
        """Whether it has pages for its tokens up to `end`, or gets them now. A preempted one gets none."""
        if seq.state is State.PREEMPTED:
            return False
        if self._owns_pages(seq, end):
            return True
        if any(table.n_missing(seq.computed, seq.scheduled, end) for table in seq.memory.tables):
            if not self._free_pages_for(seq, end, work):
                return False
            work.copies += self._grow(seq, end)
        return True

    def _owns_pages(self, seq: Sequence, end: int) -> bool:
        """Whether it has pages for its tokens up to `end` that nobody else needs."""
        first = seq.scheduled // self.page_size
        last = (end - 1) // self.page_size
        for table in seq.memory.tables:
            if not table.may_write(last) or (first < last and not table.may_write(first)):
                seq.memory.n_owned = 0
                return False
        seq.memory.n_owned = (last + 1) * self.page_size
        return True

    def _free_pages_for(self, seq: Sequence, end: int, work: StepWork) -> bool:
        """Preempt the last by rank until there are enough pages; one of them may be the sequence itself.

        Pages of sequences in flight come back when their step has landed: the sequence waits for that.
        """
        for table in seq.memory.tables:
            table.release_behind(seq.computed)
        while missing := n_short(seq.memory.tables, seq.computed, seq.scheduled, end):
            if all(n <= pool.n_leaving for n, pool in missing):
                return False
            if self._swap_one_out():
                continue
            victim = self._last_free(work)
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _grow(self, seq: Sequence, end: int) -> list[PageCopy]:
        """Take the pages that are missing; those to copy, because others need the ones it is going to write to."""
        owned = [table.own(seq.scheduled) for table in seq.memory.tables]
        for table in seq.memory.tables:
            table.take(seq.computed, end)
        return [PageCopy(group, *pages) for group, pages in enumerate(owned) if pages]

    def _last_free(self, work: StepWork) -> Sequence:
        """The last by rank of those that are not in this step yet."""
        busy = {seq.id for seq in work.sequences}
        return next(seq for seq in reversed(self.running) if seq.id not in busy)

    # ---- giving back -------------------------------------------------------------------------------------------------

    def _swap_one_out(self, output: Output | None = None) -> bool:
        """Preempt an idle sequence, the last by rank, if there is one; it waits for its owner, not in the queue.

        With an `output`, one of that kind: only such a one has a place to give.
        """
        seq = next((s for s in reversed(self.running) if s.is_idle and output in (None, s.wanted.output)), None)
        if seq:
            self._drop(seq)
            seq.queueing.swapped_out = True
        return seq is not None

    def drop_all(self) -> None:
        """All pages have lost their content: sequences give theirs back, and none is found any more."""
        while self._swap_one_out():
            pass
        for seq in reversed(self.running[:]):
            self._preempt(seq)
        if self.prefix:
            self.prefix.clear()

    def queued(self) -> list[Sequence]:
        """The sequences that wait for a place."""
        return [seq for queue in self.queues.values() for seq in queue.all()]

    def _preempt(self, seq: Sequence) -> None:
        self._drop(seq)
        self._enqueue(seq)

    def _drop(self, seq: Sequence) -> None:
        self.n_preempted += 1
        seq.result.stats.n_preempted += 1
        self._stop_running(seq)
        self._release(seq)
        seq.queueing.blocked_until = self._n_launched  # steps in flight may still sample a token for it
        seq.enter(State.PREEMPTED)

    def _stop_running(self, seq: Sequence) -> None:
        if seq in self.running:
            self.running.remove(seq)
            self._n_running[seq.wanted.output] -= 1

    def _release(self, seq: Sequence) -> None:
        self._release_pages(seq)
        if self.rows:
            self.rows.release(seq)
        if self.tiers:
            self.tiers.release(seq)
        self.token_slots.release(seq.ahead.token_slot)
        seq.ahead.token_slot = 0
        if self.slots and seq.memory.slot:
            self.slots.release(seq.memory.slot)
            seq.memory.slot = 0

    def _release_pages(self, seq: Sequence) -> None:
        for table in seq.memory.tables:
            table.cut(0)
        seq.computed = seq.scheduled = seq.memory.n_owned = 0
        seq.set_drafts(())
        seq.ahead.draft_state = None  # a draft model's keys and values were in the same pages
        if seq.memory.hashes:
            seq.memory.hashes.n_inserted = 0
