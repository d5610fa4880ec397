"""Pages of a CUDA device elsewhere: one kernel gathers all pieces of them, and one copy takes them to pinned memory.

Piece by piece a page travels at a sixth of the speed of the bus, and the host is busy with it all the time.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from tahr.backends import api
from tahr.backends.api import STATES, Bytes, HostPage, KVStore, PageForm, Ticket
from tahr.backends.cuda.kernels.common.pages import BLOCK, PageMover
from tahr.backends.cuda.pinned import PageNumbers, PinnedArena, Slot, in_runs

STAGED_SHARE = 512  # share of the card's memory for pages that travel; others are gathered meanwhile
N_OUTGOING = 2  # buffers of as many
MOST_STAGED = 1 << 15  # pages of one launch
# types that a kernel copies at a time, by bytes
WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class PieceTable:
    """Where the pages of a group lie: a layer's keys, values or state of one page are one run of memory.

    `pieces` has a row for every `BLOCK` words of such a run: its address in page 0, the bytes from page to page, the
    word of a staged page it begins at, and its words.
    """

    def __init__(self, kv: KVStore, group: int):
        self.form = api.page_form(kv, group)
        self.n_bytes = self.form.n_bytes  # all layers together
        self.n_pages = api.n_pages_of(kv, group)
        sides = kv.states() if group == STATES else [side for layer in kv.paged(group) for side in layer.unbind()]
        sizes = [side[0].numel() * side.element_size() for side in sides]
        width = next(n for n in WORDS if not any(size % n for size in sizes))
        self.word = WORDS[width]
        self.device = sides[0].device
        self.page_words = sum(sizes) // width
        rows: list[list[int]] = []
        begin = 0
        for side, size in zip(sides, sizes, strict=True):
            for first in range(0, size // width, BLOCK):
                address = side.data_ptr() + width * first
                n_words = min(BLOCK, size // width - first)
                rows.append([address, size, begin + first, n_words])
            begin += size // width
        self.pieces = torch.tensor(rows, dtype=torch.int64, device=self.device)
        self._mover = PageMover(self.pieces, self.word, self.page_words)

    def gather(self, pages: torch.Tensor, staged: torch.Tensor, stream: int = 0) -> None:
        """Copy pages, whose numbers the device can read, one after the other to as many bytes."""
        self._mover.launch(staged, pages, gathers=True, stream=stream)

    def scatter(self, pages: torch.Tensor, staged: torch.Tensor, stream: int = 0) -> None:
        """Put what `gather` gave into pages."""
        self._mover.launch(staged, pages, gathers=False, stream=stream)


@dataclass(slots=True)
class StagedPage:
    """A page in the order it lies in on the device; its pinned memory is given back with the last reference."""

    form: PageForm
    memory: torch.Tensor
    slot: Slot | None  # None: the memory is not pinned
    arena: PinnedArena

    @property
    def n_bytes(self) -> int:
        return len(self.memory)

    @property
    def data(self) -> Bytes:
        found: Bytes = self.memory.numpy()
        return found

    def __del__(self) -> None:
        if slot := getattr(self, "slot", None):
            self.arena.give(slot)


class StagingBuffer:
    """Memory on the device that pages pass through."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.filled = torch.cuda.Event()
        self.left = torch.cuda.Event()  # the last pages have

    def bytes(self, n: int, device: torch.device, users: Sequence[torch.cuda.Stream]) -> torch.Tensor:
        """Memory of `n` bytes, which these streams use."""
        if len(self._memory) < n:
            self._memory = torch.empty(n, dtype=torch.uint8, device=device)
            for user in users:
                user.wait_stream(torch.cuda.current_stream())  # whose memory it may have been
                self._memory.record_stream(user)
        return self._memory[:n]


@dataclass(frozen=True, slots=True)
class CopyTicket:
    """A copy on the stream of pages."""

    contents: Sequence[StagedPage]
    ended: torch.cuda.Event
    loads: bool

    def done(self) -> bool:
        return bool(self.ended.query())

    def collect(self) -> Sequence[HostPage]:
        if self.loads:
            torch.cuda.current_stream().wait_event(self.ended)
        else:
            self.ended.synchronize()
        return self.contents


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
        self.arena = PinnedArena(pinned_bytes, max(api.page_form(kv, group).n_bytes for group in {*kv.group_of}))
        self._numbers = PageNumbers()
        self._outgoing = [StagingBuffer() for _ in range(N_OUTGOING)]
        self._incoming = StagingBuffer()
        self._steps_before = torch.cuda.Event()
        self.staged_bytes = torch.cuda.get_device_properties(self._stream.device).total_memory // STAGED_SHARE

    def n_storable(self, n_pages: int, group: int = 0) -> int:
        if not self.arena.grows and self.arena.n_bytes == 0:
            return n_pages  # slow, without pinned memory
        return min(n_pages, self.arena.n_free(self._checked((), group).n_bytes))

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
        staged = staging.bytes(len(pages) * table.n_bytes, table.device, (steps, self._stream))
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
        api.check_contents([page.form for page in staged], (table.form, len(pages)))
        steps = torch.cuda.current_stream()
        ended = torch.cuda.Event()
        self._steps_before.record(steps)
        with current(self._stream, steps):
            for some in self._parts(table.n_bytes, len(pages)):
                ended = self._receive(table, pages[some], staged[some])
        return CopyTicket(staged, ended, loads=True)

    def _receive(self, table: PieceTable, pages: Sequence[int], contents: Sequence[StagedPage]) -> torch.cuda.Event:
        """Put content into pages, which steps enqueued before may still read while it travels."""
        staged = self._incoming.bytes(len(pages) * table.n_bytes, table.device, (self._stream,))
        for part, memory in self._in_memory(table, contents):
            staged[part].copy_(memory, non_blocking=True)
        self._stream.wait_event(self._steps_before)
        table.scatter(self._numbers.put(pages), staged, self._stream.cuda_stream)
        ended = torch.cuda.Event()
        ended.record(self._stream)
        self._numbers.read_at(ended)
        return ended

    def blank(self, n_pages: int, group: int = 0) -> Sequence[HostPage]:
        self._stream.synchronize()  # slots that were given back may still be read from
        return self._contents(self._checked((), group), n_pages)

    def _checked(self, pages: Sequence[int], group: int) -> PieceTable:
        table = self._tables.get(group)
        if table is None:
            table = self._tables[group] = PieceTable(self._kv, group)
        api.check_pages(pages, table.n_pages)
        return table

    def _contents(self, table: PieceTable, n_pages: int) -> list[StagedPage]:
        """Host memory for pages: pinned, while there is any."""
        slots = self.arena.take(table.n_bytes, n_pages)
        pages = [StagedPage(table.form, self.arena.memory(slot), slot, self.arena) for slot in slots]
        for _ in range(n_pages - len(slots)):
            memory = torch.empty(table.n_bytes, dtype=torch.uint8)
            pages.append(StagedPage(table.form, memory, None, self.arena))
        return pages

    def _in_memory(self, table: PieceTable, contents: Sequence[StagedPage]) -> Iterator[tuple[slice, torch.Tensor]]:
        """Runs of pages that are neighbours on the host: where they lie one behind the other, and their memory."""
        for begin, end in in_runs([page.slot for page in contents]):
            first = contents[begin]
            memory = self.arena.memory(first.slot, end - begin) if first.slot else first.memory
            yield slice(begin * table.n_bytes, end * table.n_bytes), memory

    def _parts(self, n_bytes: int, n_pages: int) -> Iterator[slice]:
        """The pages of a copy that travel together."""
        fitting = max(1, self.staged_bytes // n_bytes)
        most = min(fitting, MOST_STAGED)
        for first in range(0, n_pages, most):
            yield slice(first, min(first + most, n_pages))
