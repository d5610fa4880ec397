"""A model without arrays: its next token is a hash of its text, which it must find by way of the page tables.

Every slot remembers which token at which position was written to it, so a page that is shared, copied, evicted or
reused wrongly shows at once as another text.
"""

from collections import deque
from dataclasses import dataclass

from tahr.config import SamplingParams
from tahr.engine.scheduling.scheduler import Scheduler
from tahr.engine.scheduling.work import SchedulerLimits, StepWork
from tahr.engine.sequences.parts import Queueing, ReplyState
from tahr.engine.sequences.sequence import Sequence
from tahr.executor.output import Output
from tahr.kv.pages import PagePool, most_held, pages_for
from tahr.kv.prefix import PrefixCache
from tahr.kv.tables import PageCopy, PageTable

PAGE = 4
N_VOCAB = 3  # few, so that texts often begin alike


def limits(**options: float) -> SchedulerLimits:
    sizes = {"n_seqs": 4, "n_prefill_seqs": 4, "n_decode_seqs": 4, "prefill_chunk": 8, "n_prefill_tokens": 8}
    return SchedulerLimits(**{**sizes, **options})  # type: ignore[arg-type]


def scheduler(
    n_pages: int,
    *,
    windows: tuple[int, ...] = (0,),
    n_spare: int = 0,
    cached: bool = True,
    order: str = "fcfs",
    overlaps: bool = False,
    **options: float,
) -> Scheduler:
    """One pool per window: `n_pages` for layers that see everything, else what one sequence needs and `n_spare`."""
    sizes = limits(**options)
    chunk = max(sizes.prefill_chunk, sizes.n_decode_tokens) * (2 if overlaps else 1)
    pools = [PagePool(most_held(PAGE, w, chunk) + n_spare if w else n_pages, PAGE, w, chunk) for w in windows]
    return Scheduler(pools, sizes, PrefixCache(pools) if cached else None, order)


def sequence(
    prompt: int | list[int], n_new: int, n_before: int = 0, background: bool = False, **options: object
) -> Sequence:
    """A request; a number stands for a prompt of that length."""
    tokens = [i % N_VOCAB for i in range(prompt)] if isinstance(prompt, int) else list(prompt)
    params = SamplingParams(**options)  # type: ignore[arg-type]
    queueing = Queueing(n_before=n_before, is_background=background)
    return Sequence(tokens, params, ReplyState(len(tokens) + n_new), queueing=queueing)


def token_after(tokens: list[int]) -> int:
    return hash(tuple(tokens)) // 7 % N_VOCAB


def expected(prompt: list[int], max_length: int) -> list[int]:
    """The whole text of a request that is alone."""
    tokens = list(prompt)
    while len(tokens) < max_length:
        tokens.append(token_after(tokens))
    return tokens


@dataclass
class Launched:
    """A step in flight: what it writes and reads, by the page tables as they were when it was launched."""

    work: StepWork
    writes: list[list[tuple[Sequence, int, int]]]  # by pool: sequence, position, slot
    reads: list[list[tuple[Sequence, int, int]]]
    drafts: dict[int, list[int]]
    executed: bool = False


class NullModel:
    """Runs what a scheduler chooses and checks everything that can be checked.

    With `overlaps`, a step is executed as late as possible: when it is collected, after the next one was launched.
    What sequences that have ended meanwhile write is junk, and pages that nobody needs are blanked at once: a page that
    is given away too early shows. `n_drafts` guesses are computed together with the last token of a sequence.
    """

    def __init__(self, sched: Scheduler, overlaps: bool = False, n_drafts: int = 0):
        self.sched = sched
        self.overlaps, self.n_drafts = overlaps, n_drafts
        self.slots: list[list[object]] = [[None] * (pool.n_pages * PAGE) for pool in sched.pools]
        self.in_flight: deque[Launched] = deque()
        self.n_accepted = 0

    def step(self) -> StepWork:
        """One step of an engine; what was launched in it."""
        self.guess()
        work = self.sched.schedule()
        self.check_work(work)
        if work:
            self.launch(work)
        if len(self.in_flight) > (1 if self.overlaps and work else 0):
            self.land(self.in_flight.popleft())
        self.check()
        return work

    def speculates(self, seq: Sequence) -> bool:
        """Where steps overlap, every other sequence guesses and the others run ahead."""
        return self.n_drafts > 0 and (seq.id % 2 == 0 or not self.overlaps)

    def guess(self) -> None:
        for seq in self.sched.running if self.n_drafts else []:
            if self.speculates(seq) and seq.n_left == 1 and seq.n_generated and not seq.ahead.n_ahead:
                n = self.sched.reserve(seq, min(self.n_drafts, seq.reply.max_length - len(seq.tokens) - 1))
                seq.set_drafts([len(seq.tokens) % N_VOCAB] * n)

    def launch(self, work: StepWork) -> None:
        if work.copies:
            for step in self.in_flight:  # copies run at once, after everything launched before
                self.execute(step)
            self.copy(work.copies)
        step = Launched(work, [], [], {item.sequence.id: list(item.sequence.ahead.drafts) for item in work})
        for group, pool in enumerate(self.sched.pools):
            spans = [(seq, begin, begin + n, seq.memory.tables[group]) for seq, begin, n, *_ in work]
            for _, begin, end, table in spans:
                assert all(pool.writable(table.pages[at // PAGE]) for at in range(begin, end)), "others need this page"
                assert table.first <= first_seen(pool, begin) // PAGE, "a page that is needed was released"
            step.writes.append([(s, at, slot(t, at)) for s, begin, end, t in spans for at in range(begin, end)])
            step.reads.append(
                [(s, at, slot(t, at)) for s, begin, end, t in spans for at in range(first_seen(pool, begin), end)]
            )
        self.in_flight.append(step)
        self.sched.launched()
        for item in work:
            seq = item.sequence
            runs = self.overlaps and item.samples and not self.speculates(seq)
            if runs and len(seq.tokens) + seq.ahead.n_ahead + 1 < seq.reply.max_length:
                seq.ahead.n_ahead += 1

    def copy(self, copies: list[PageCopy]) -> None:
        copied = [self.slots[group][source * PAGE : (source + 1) * PAGE] for group, source, _ in copies]
        for content, (group, _, target) in zip(copied, copies, strict=True):
            self.slots[group][target * PAGE : (target + 1) * PAGE] = content

    def execute(self, step: Launched) -> None:
        if step.executed:
            return
        step.executed = True
        for slots, writes, reads in zip(self.slots, step.writes, step.reads, strict=True):
            for seq, at, where in writes:
                known = [*seq.tokens, *step.drafts[seq.id]]
                slots[where] = (known[at], at) if at < len(known) and not seq.done else "junk"
            for seq, at, where in reads:
                if not seq.done and at < len(seq.tokens):
                    assert slots[where] == (seq.tokens[at], at), "a page was given away too early"

    def land(self, step: Launched) -> None:
        self.execute(step)
        self.sched.landed()
        right = {item.sequence.id: self.verify(item.sequence, step.drafts) for item in step.work}
        self.sched.advance(step.work, {id: n for id, n in right.items() if step.drafts[id]})
        for item in step.work:
            for _ in range(1 + right[item.sequence.id] if item.samples else 0):
                if not item.sequence.done:
                    self.pick(item.sequence)
        self.blank_free_pages()

    def verify(self, seq: Sequence, drafts: dict[int, list[int]]) -> int:
        """How many of the drafts are right, up to the first wrong one."""
        text, n_right = list(seq.tokens), 0
        for draft in drafts[seq.id]:
            if draft != token_after(text):
                break
            text.append(draft)
            n_right += 1
        self.n_accepted += n_right
        return n_right

    def blank_free_pages(self) -> None:
        for pool, slots in zip(self.sched.pools, self.slots, strict=True):
            for page in pool._free:
                slots[page * PAGE : (page + 1) * PAGE] = [None] * PAGE

    def look(self, seq: Sequence) -> None:
        """What tokens after the computed ones see is the sequence's text, in every pool."""
        for table, slots in zip(seq.memory.tables, self.slots, strict=True):
            seen = range(first_seen(table.pool, seq.computed), seq.computed)
            assert [slots[slot(table, at)] for at in seen] == [(seq.tokens[at], at) for at in seen]

    def pick(self, seq: Sequence) -> None:
        seq.append(token_after(seq.tokens), now=0.0)
        if len(seq.tokens) >= seq.reply.max_length:
            seq.end("length")
            self.sched.remove(seq)

    def run(self, *sequences: Sequence, max_steps: int = 5000) -> None:
        """Until these are done."""
        for _ in range(max_steps):
            if all(seq.done for seq in sequences):
                break
            waits = bool(self.in_flight)
            assert self.step() or waits, "work is waiting, but the scheduler chose none"
        else:
            raise AssertionError("some sequences never finish")
        while self.in_flight and not self.sched.running and not self.sched.n_waiting:
            self.step()

    def check_work(self, work: StepWork) -> None:
        lim = self.sched.limits
        assert len(self.sched.running) <= lim.n_seqs
        assert sum(item.n_tokens for item in work) <= lim.n_tokens
        assert sum(item.n_rows for item in work) <= lim.n_rows
        assert len(work) == len({item.sequence.id for item in work}) <= lim.n_seqs
        assert all(0 < item.n_tokens <= max(lim.prefill_chunk, lim.n_decode_tokens) for item in work)

    def check(self) -> None:
        """Pages are accounted for, and nobody holds a page more than its text and its windows need."""
        running = self.sched.running
        for group, pool in enumerate(self.sched.pools):
            pool.check(seq.memory.tables[group].held for seq in running)
        for seq in running:
            assert seq.computed <= seq.scheduled <= len(seq.tokens) + seq.ahead.n_ahead
            for table in seq.memory.tables:
                assert len(table.pages) <= pages_for(len(seq.tokens) + seq.ahead.n_ahead, PAGE), "a page wasted"
                assert len(table) <= table.pool.most_held
            self.look(seq)
        assert not any(
            any(seq.memory.tables)
            for seq in (*self.sched.queues[Output.LOGITS].members, *self.sched.queues[Output.HIDDEN].members)
        ), "a waiting sequence holds pages"


def first_seen(pool: PagePool, begin: int) -> int:
    """The first position that a token at `begin` sees in the layers of a pool."""
    return max(0, begin - pool.window + 1) if pool.window else 0


def slot(table: PageTable, at: int) -> int:
    return table.pages[at // PAGE] * PAGE + at % PAGE
