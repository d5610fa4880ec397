"""A model without arrays: its next token is a hash of the text it finds by way of the page table.

Every slot remembers which token at which position was written to it, so a page that is shared, copied, evicted or
reused wrongly shows at once as another text.
"""

from tahr.config import SamplingParams
from tahr.engine.scheduler import Limits, Scheduler, Work
from tahr.engine.sequence import Sequence
from tahr.kv.pages import PagePool
from tahr.kv.prefix import PrefixCache

PAGE = 4
N_VOCAB = 3  # few, so that texts often begin alike


def limits(**options: float) -> Limits:
    sizes = {"n_seqs": 4, "n_prefill_seqs": 4, "n_decode_seqs": 4, "prefill_chunk": 8, "n_prefill_tokens": 8}
    return Limits(**{**sizes, **options})  # type: ignore[arg-type]


def scheduler(n_pages: int, *, cached: bool = True, order: str = "fcfs", **options: float) -> Scheduler:
    pool = PagePool(n_pages)
    return Scheduler(pool, PAGE, limits(**options), PrefixCache(pool, PAGE) if cached else None, order)


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
        self.slots: list[tuple[int, int] | None] = [None] * (sched.pool.n_pages * PAGE)

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
        copied = [self.slots[item.copy[0] * PAGE : (item.copy[0] + 1) * PAGE] for item in work if item.copy]
        for content, item in zip(copied, [item for item in work if item.copy], strict=True):
            assert item.copy
            self.slots[item.copy[1] * PAGE : (item.copy[1] + 1) * PAGE] = content
        for item in work:
            seq = item.sequence
            for position in range(seq.computed, seq.computed + item.n_tokens):
                page = seq.pages[position // PAGE]
                assert self.sched.pool.writable(page), "a page that others need is written to"
                self.slots[page * PAGE + position % PAGE] = seq.tokens[position], position

    def read(self, seq: Sequence) -> list[int]:
        """The text as attention finds it."""
        found = [self.slots[seq.pages[i // PAGE] * PAGE + i % PAGE] for i in range(seq.computed)]
        assert [at for _, at in found if (_, at)] == list(range(seq.computed))  # type: ignore[misc]
        return [token for token, _ in found]  # type: ignore[misc]

    def pick(self, seq: Sequence) -> None:
        seq.tokens.append(token_after(self.read(seq)))
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
        """Pages are accounted for, and nobody holds a page more than its text needs."""
        self.sched.pool.check(seq.pages for seq in self.sched.running)
        for seq in self.sched.running:
            assert len(seq.pages) <= self.sched.pages_for(len(seq.tokens)), "more than one page of waste"
            assert self.read(seq) == seq.tokens[: seq.computed]
        assert not any(len(seq.pages) for seq in self.sched.line.members), "a waiting sequence holds pages"
