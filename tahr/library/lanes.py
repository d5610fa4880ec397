"""Token sequences advanced by hand over KV memory of their own: what sessions, beams and embeddings share."""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass

import numpy as np

from tahr.backends.api import Backend, Floats, MemoryLayout, StepLimits
from tahr.config import GREEDY
from tahr.engine.runner import Forward, Runner
from tahr.engine.sequence import Sequence
from tahr.engine.work import WorkItem
from tahr.errors import ConfigError, KvCacheFull
from tahr.kv.pages import PagePool, pages_for
from tahr.kv.tables import PageCopy, PageTable
from tahr.models.decoder import Decoder

PAGE_SIZE = 32
Feed = tuple[Sequence, ListOf[int]]  # a lane, and the tokens to compute after what it holds


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """How much lanes must hold."""

    n_tokens: int  # the longest text of one lane
    n_lanes: int = 1
    chunk: int = 512  # tokens of one step
    n_rows: int = 1  # rows wanted of one step
    n_pages: int | None = None  # None: enough for every lane to be full

    def step_limits(self) -> StepLimits:
        return StepLimits(self.chunk, self.n_lanes, self.n_rows, pages_for(self.n_tokens, PAGE_SIZE))


class Lanes:
    """Runs steps of some lanes, which are sequences without a scheduler.

    Forked lanes share pages; one that is about to write to a shared page copies it first. All layers share one pool
    and keep the whole text, windows or not, so that a lane can go back. `forward` is what a step computes: logits,
    unless told otherwise.
    """

    def __init__(
        self,
        backend: Backend,
        decoder: Decoder,
        limits: LaneLimits,
        kv_dtype: str | None = None,
        forward: Forward | None = None,
    ):
        self.backend, self.limits = backend, limits
        self.n_vocab = decoder.config.n_vocab
        n_pages = limits.n_pages or limits.n_lanes * pages_for(limits.n_tokens, PAGE_SIZE)
        self.pool = PagePool(n_pages, PAGE_SIZE)
        self.kv = backend.kv_store(
            MemoryLayout(decoder.memory, (n_pages,), PAGE_SIZE, kv_dtype or backend.kv_dtypes[0])
        )
        self._runner = Runner(backend, decoder, self.kv, limits.step_limits(), forward=forward)

    def open(self) -> Sequence:
        """An empty lane."""
        return Sequence([], GREEDY, self.limits.n_tokens, tables=[PageTable(self.pool)])

    def run(self, feeds: ListOf[Feed], n_rows: int = 1) -> Floats:
        """Compute the tokens of each feed in one step; the rows of its last `n_rows` tokens (at most), feed by feed."""
        for lane, tokens in feeds:
            self.check(lane, tokens)
        work = [self._prepare(lane, tokens, n_rows) for lane, tokens in feeds]
        rows = np.array(self._runner.run(work))  # copied: the next step overwrites it
        for lane, tokens in feeds:
            lane.computed += len(tokens)
        return rows

    def read(self, lane: Sequence, tokens: ListOf[int]) -> Floats:
        """Compute any number of tokens of one lane, chunk by chunk; the row of the last."""
        self.check(lane, tokens)
        chunk = self.limits.chunk
        n_before = (len(tokens) - 1) // chunk * chunk  # only the last chunk has a row that is wanted
        for begin in range(0, n_before, chunk):
            self.run([(lane, tokens[begin : begin + chunk])], n_rows=0)
        row: Floats = self.run([(lane, tokens[n_before:])])[0]
        return row

    def fork(self, lane: Sequence) -> Sequence:
        """Another lane with the same tokens; nothing is copied until one of them writes."""
        other = self.open()
        other.tokens, other.tables, other.computed = list(lane.tokens), [lane.tables[0].fork()], lane.computed
        return other

    def truncate(self, lane: Sequence, n_tokens: int) -> None:
        """As if only the first n tokens had been computed."""
        lane.tables[0].cut(pages_for(n_tokens, PAGE_SIZE))
        del lane.tokens[n_tokens:]
        lane.computed = n_tokens

    def take_over(self, lane: Sequence, tokens: ListOf[int]) -> None:
        """Pages for tokens whose keys and values somebody else is going to write."""
        self.truncate(lane, 0)
        self.check(lane, tokens)
        lane.tables[0].take(0, len(tokens))
        lane.tokens.extend(tokens)
        lane.computed = len(tokens)

    def check(self, lane: Sequence, tokens: ListOf[int]) -> None:
        """Refuse tokens that cannot be computed."""
        if not tokens:
            raise ConfigError("There are no tokens to compute: give at least one.")
        if min(tokens) < 0 or max(tokens) >= self.n_vocab:
            raise ConfigError(f"Token ids must lie between 0 and {self.n_vocab - 1}.")
        if lane.computed + len(tokens) > self.limits.n_tokens:
            raise KvCacheFull(
                f"The text would have {lane.computed + len(tokens)} tokens, but the context holds "
                f"{self.limits.n_tokens}: shorten it, or raise the context size."
            )

    def _prepare(self, lane: Sequence, tokens: ListOf[int], n_rows: int) -> WorkItem:
        del lane.tokens[lane.computed :]  # a step that failed leaves tokens behind
        lane.tokens.extend(tokens)
        table = lane.tables[0]
        owned = table.own(lane.computed)
        table.take(lane.computed, len(lane.tokens))
        copies = [PageCopy(0, *owned)] if owned else []
        return WorkItem(lane, lane.computed, len(tokens), n_rows > 0, min(n_rows, len(tokens)), copies)
