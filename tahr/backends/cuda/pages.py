"""Pages of a CUDA device elsewhere: one kernel gathers all pieces of them, and one copy takes them to pinned memory.

Piece by piece a page travels at a sixth of the speed of the bus, and the host is busy with it all the time.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch

from tahr.backends import api
from tahr.backends.api import HostPage, KVStore, Ticket
from tahr.backends.cuda.piece_table import PieceTable
from tahr.backends.cuda.pinned import PageNumbers, PinnedArena, in_runs
from tahr.backends.cuda.staged_pages import CopyTicket, StagedPage, StagingBuffer

STAGED_SHARE = 512  # share of the card's memory for pages that travel; others are gathered meanwhile
N_OUTGOING = 2  # buffers of as many
MOST_STAGED = 1 << 15  # pages of one launch


@cache
def stream_of_pages() -> torch.cuda.Stream:
    """One for all: content of one store may be loaded by another, and memory is taken again in the order of calls."""
    return torch.cuda.Stream()


@contextmanager
def current(stream: torch.cuda.Stream, then: torch.cuda.Stream) -> Iterator[None]:
    """Within, torch copies on a stream. torch's own way looks devices up, for much of the time that a call may take."""
    torch.cuda.set_stream(stream)
    try:
        yield
    finally:
        torch.cuda.set_stream(then)


class CudaPageIO:
    """`PageIO` of a device: pages travel on a stream of their own.

    Pages are gathered on the stream of the steps, so that steps enqueued later may overwrite them; all else is on the
    stream of pages, so that no step waits for the bus. Every use of pinned memory is there too, in the order of calls.
    """

    def __init__(self, kv: KVStore, pinned_bytes: int):
        self._kv = kv
        self._tables: dict[int, PieceTable] = {}
        self._stream = stream_of_pages()
        largest = max(api.page_form(kv, group).n_bytes for group in {*kv.group_of})
        self.arena = PinnedArena(pinned_bytes, largest)
        self._numbers = PageNumbers()
        self._outgoing = [StagingBuffer() for _ in range(N_OUTGOING)]
        self._incoming = StagingBuffer()
        self._steps_before = torch.cuda.Event()
        self.staged_bytes = torch.cuda.get_device_properties(self._stream.device).total_memory // STAGED_SHARE

    def n_storable(self, n_pages: int, group: int = 0) -> int:
        if not self.arena.grows and self.arena.n_bytes == 0:
            return n_pages  # slow, without pinned memory
        table = self._checked((), group)
        return min(n_pages, self.arena.n_free(table.n_bytes))

    def store(self, pages: Sequence[int], group: int = 0) -> Ticket:
        table = self._checked(pages, group)
        contents = self._contents(table, len(pages))
        steps = torch.cuda.current_stream()
        ended = torch.cuda.Event()
        with current(self._stream, steps):
            for some in self._parts(table.n_bytes, len(pages)):
                ended = self._send(table, pages[some], contents[some], steps)
        return CopyTicket(contents, ended, loads=False)

    def _send(
        self, table: PieceTable, pages: Sequence[int], contents: Sequence[StagedPage], steps: torch.cuda.Stream
    ) -> torch.cuda.Event:
        """Pages to the host by way of a buffer; the event says when they are there."""
        self._outgoing.append(self._outgoing.pop(0))
        staging = self._outgoing[0]
        n_bytes = len(pages) * table.n_bytes
        staged = staging.bytes(n_bytes, table.device, (steps, self._stream))
        numbers = self._numbers.put(pages)
        steps.wait_event(staging.left)
        table.gather(numbers, staged, steps.cuda_stream)
        staging.filled.record(steps)
        self._stream.wait_event(staging.filled)
        for part, memory in self._in_memory(table, contents):
            memory.copy_(staged[part], non_blocking=True)
        staging.left = torch.cuda.Event()  # a ticket may hold the one before
        staging.left.record(self._stream)
        self._numbers.read_at(staging.left)
        return staging.left

    def load(self, pages: Sequence[int], group: int, contents: Sequence[HostPage]) -> Ticket:
        table = self._checked(pages, group)
        staged = [page for page in contents if isinstance(page, StagedPage)]
        assert len(staged) == len(contents), "content goes back to the kind of backend that stored it"
        forms = [page.form for page in staged]
        api.check_contents(forms, (table.form, len(pages)))
        steps = torch.cuda.current_stream()
        ended = torch.cuda.Event()
        self._steps_before.record(steps)
        with current(self._stream, steps):
            for some in self._parts(table.n_bytes, len(pages)):
                ended = self._receive(table, pages[some], staged[some])
        return CopyTicket(staged, ended, loads=True)

    def _receive(self, table: PieceTable, pages: Sequence[int], contents: Sequence[StagedPage]) -> torch.cuda.Event:
        """Put content into pages, which steps enqueued before may still read while it travels."""
        n_bytes = len(pages) * table.n_bytes
        staged = self._incoming.bytes(n_bytes, table.device, (self._stream,))
        for part, memory in self._in_memory(table, contents):
            staged[part].copy_(memory, non_blocking=True)
        self._stream.wait_event(self._steps_before)
        numbers = self._numbers.put(pages)
        table.scatter(numbers, staged, self._stream.cuda_stream)
        ended = torch.cuda.Event()
        ended.record(self._stream)
        self._numbers.read_at(ended)
        return ended

    def blank(self, n_pages: int, group: int = 0) -> Sequence[HostPage]:
        self._stream.synchronize()  # slots that were given back may still be read from
        table = self._checked((), group)
        return self._contents(table, n_pages)

    def _checked(self, pages: Sequence[int], group: int) -> PieceTable:
        table = self._tables.get(group)
        if table is None:
            table = self._tables[group] = PieceTable(self._kv, group)
        api.check_pages(pages, table.n_pages)
        return table

    def _contents(self, table: PieceTable, n_pages: int) -> list[StagedPage]:
        """Host memory for pages: pinned, while there is any."""
        pages = []
        for slot in self.arena.take(table.n_bytes, n_pages):
            memory = self.arena.memory(slot)
            pages.append(StagedPage(table.form, memory, slot, self.arena))
        while len(pages) < n_pages:
            memory = torch.empty(table.n_bytes, dtype=torch.uint8)
            pages.append(StagedPage(table.form, memory, None, self.arena))
        return pages

    def _in_memory(self, table: PieceTable, contents: Sequence[StagedPage]) -> Iterator[tuple[slice, torch.Tensor]]:
        """Runs of pages that are neighbours on the host: where they lie one behind the other, and their memory."""
        slots = [page.slot for page in contents]
        for begin, end in in_runs(slots):
            first = contents[begin]
            memory = first.memory
            if first.slot:
                memory = self.arena.memory(first.slot, end - begin)
            yield slice(begin * table.n_bytes, end * table.n_bytes), memory

    def _parts(self, n_bytes: int, n_pages: int) -> Iterator[slice]:
        """The pages of a copy that travel together."""
        fitting = max(1, self.staged_bytes // n_bytes)
        most = min(fitting, MOST_STAGED)
        for first in range(0, n_pages, most):
            yield slice(first, min(first + most, n_pages))
