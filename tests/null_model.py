"""A model without arrays: its next token is a hash of its text, which it must find by way of the page tables.

Every slot remembers which token at which position was written to it, so a page that is shared, copied, evicted or
reused wrongly shows at once as another text.
"""

from tahr.config import SamplingParams
from tahr.engine.scheduler import Limits, Scheduler, Work
from tahr.engine.sequence import Sequence
from tahr.kv.pages import PagePool, most_held, pages_for
from tahr.kv.prefix import PrefixCache

PAGE = 4
N_VOCAB = 3  # few, so that texts often begin alike


def limits(**options: float) -> Limits:
    sizes = {"n_seqs": 4, "n_prefill_seqs": 4, "n_decode_seqs": 4, "prefill_chunk": 8, "n_prefill_tokens": 8}
    return Limits(**{**sizes, **options})  # type: ignore[arg-type]


def scheduler(
    n_pages: int,
    *,
    windows: tuple[int, ...] = (0,),
    n_spare: int = 0,
    cached: bool = True,
    order: str = "fcfs",
    **options: float,
) -> Scheduler:
    """One pool per window: `n_pages` for layers that see everything, else what one sequence needs and `n_spare`."""
    sizes = limits(**options)
    chunk = sizes.prefill_chunk
    pools = [PagePool(most_held(PAGE, w, chunk) + n_spare if w else n_pages, PAGE, w, chunk) for w in windows]
    return Scheduler(pools, sizes, PrefixCache(pools) if cached else None, order)


def sequence(prompt: int | list[int], n_new: int, **options: object) -> Sequence:
    """A request; a number stands for a prompt of that length."""
    tokens = [i % N_VOCAB for i in range(prompt)] if isinstance(prompt, int) else list(prompt)
    return Sequence(tokens, SamplingParams(**options), len(tokens) + n_new)  # type: ignore[arg-type]


def token_after(tokens: list[int]) -> int:
    return hash(tuple(tokens)) // 7 % N_VOCAB


def expected(prompt: list[int], max_length: int) -> list[int]:
    """The whole text of a request that is alone."""
    tokens = list(prompt)
    while len(tokens) < max_length:
        tokens.append(token_after(tokens))
    return tokens


class NullModel:
    """Runs what a scheduler chooses and checks everything that can be checked."""

    def __init__(self, sched: Scheduler):
        self.sched = sched
        self.slots: list[list[tuple[int, int] | None]] = [[None] * (pool.n_pages * PAGE) for pool in sched.pools]

    def step(self) -> list[Work]:
        """One step of an engine."""
        work = self.sched.next()
        self.check_work(work)
        self.compute(work)
        self.sched.advance(work)
        for item in work:
            if item.picks:
                self.pick(item.sequence)
        self.check()
        return work

    def compute(self, work: list[Work]) -> None:
        copies = [copy for item in work for copy in item.copies]
        copied = [self.slots[group][source * PAGE : (source + 1) * PAGE] for group, source, _ in copies]
        for content, (group, _, target) in zip(copied, copies, strict=True):
            self.slots[group][target * PAGE : (target + 1) * PAGE] = content
        for seq, n, *_ in work:
            for table, slots in zip(seq.tables, self.slots, strict=True):
                for position in range(seq.computed, seq.computed + n):
                    page = table.pages[position // PAGE]
                    assert table.pool.writable(page), "a page that others need is written to"
                    slots[page * PAGE + position % PAGE] = seq.tokens[position], position
        for seq, n, *_ in work:
            self.look(seq, seq.computed, seq.computed + n)

    def look(self, seq: Sequence, n_computed: int, end: int) -> None:
        """What tokens from `n_computed` on see before `end` is the sequence's text, in every pool."""
        for table, slots in zip(seq.tables, self.slots, strict=True):
            first = max(0, n_computed - table.pool.window + 1) if table.pool.window else 0
            assert table.first <= first // PAGE, "a page that is needed was given back"
            found = [slots[table.pages[i // PAGE] * PAGE + i % PAGE] for i in range(first, end)]
            assert found == [(seq.tokens[i], i) for i in range(first, end)]

    def pick(self, seq: Sequence) -> None:
        seq.tokens.append(token_after(seq.tokens))
        if len(seq.tokens) >= seq.max_length:
            seq.end("length")
            self.sched.remove(seq)

    def run(self, *sequences: Sequence, max_steps: int = 5000) -> None:
        """Until these are done."""
        for _ in range(max_steps):
            if all(seq.done for seq in sequences):
                return
            assert self.step(), "work is waiting, but the scheduler chose none"
        raise AssertionError("some sequences never finish")

    def check_work(self, work: list[Work]) -> None:
        lim = self.sched.limits
        assert len(self.sched.running) <= lim.n_seqs
        assert sum(item.n_tokens for item in work) <= lim.n_tokens
        assert sum(item.n_rows for item in work) <= lim.n_rows
        assert len(work) == len({item.sequence.id for item in work}) <= lim.n_seqs
        assert all(0 < item.n_tokens <= lim.prefill_chunk for item in work)

    def check(self) -> None:
        """Pages are accounted for, and nobody holds a page more than its text and its windows need."""
        running = self.sched.running
        for group, pool in enumerate(self.sched.pools):
            pool.check(seq.tables[group].held for seq in running)
        for seq in running:
            for table in seq.tables:
                assert len(table.pages) <= pages_for(len(seq.tokens), PAGE), "more than one page of waste"
                assert len(table) <= table.pool.most_held
            self.look(seq, seq.computed, seq.computed)
        assert not any(any(seq.tables) for seq in self.sched.line.members), "a waiting sequence holds pages"
