"""Pages of a CUDA device elsewhere: one kernel gathers all pieces of them, and one copy takes them to pinned memory.

Piece by piece a page travels at a sixth of the speed of the bus, and the host is busy with it all the time.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from tahr.backends import api
from tahr.backends.api import HostPages, KVStore, PageForm, Ticket
from tahr.backends.cuda.kernels.common.pages import BLOCK, PageMover
from tahr.backends.cuda.pinned import PageNumbers, PinnedBlock, PinnedMemory

STAGED_SHARE = 512  # of the card's memory, one holds pages that travel; others are gathered meanwhile
N_OUTGOING = 2  # buffers of as many
MOST_STAGED = 1 << 15  # pages of one launch
WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}  # what a kernel copies at a time, by bytes
# Pages of a call, at most, that the kernel itself takes over the bus. Steps wait for such a store.
MOST_DIRECT_STORED = 0
MOST_DIRECT_LOADED = 0


class PieceTable:
    """Where the pages of a group lie: a layer's keys or values of one page are one run of memory.

    `pieces` has a row for every `BLOCK` words of such a run: its address in page 0, the bytes from page to page, the
    word of a staged page it begins at, and its words.
    """

    def __init__(self, kv: KVStore, group: int):
        self.form = api.page_form(kv, group)
        self.n_bytes = self.form.n_bytes  # it adds up all layers
        self.n_pages = kv.layout.n_pages[group]
        sides = [side for layer in kv.paged(group) for side in layer.unbind()]
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
class StagedPages:
    """Pages in the order they lie in on the device; their pinned memory is given back with the last reference."""

    form: PageForm
    n_pages: int
    memory: torch.Tensor
    block: PinnedBlock | None  # None: the memory is not pinned
    pinned: PinnedMemory

    @property
    def n_bytes(self) -> int:
        return self.n_pages * self.form.n_bytes

    def __del__(self) -> None:
        if block := getattr(self, "block", None):
            self.pinned.give(block)


class StagingBuffer:
    """Memory on the device that pages pass through."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.filled = torch.cuda.Event()
        self.left = torch.cuda.Event()  # the last pages have

    def bytes(self, n: int, device: torch.device, users: Sequence[torch.cuda.Stream]) -> torch.Tensor:
        """So many bytes, which these streams use."""
        if len(self._memory) < n:
            self._memory = torch.empty(n, dtype=torch.uint8, device=device)
            for user in users:
                user.wait_stream(torch.cuda.current_stream())  # whose memory it may have been
                self._memory.record_stream(user)
        return self._memory[:n]


@dataclass(frozen=True, slots=True)
class CopyTicket:
    """A copy on the stream of pages."""

    content: StagedPages
    ended: torch.cuda.Event
    loads: bool

    def done(self) -> bool:
        return bool(self.ended.query())

    def collect(self) -> HostPages:
        if self.loads:
            torch.cuda.current_stream().wait_event(self.ended)
        else:
            self.ended.synchronize()
        return self.content


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
        self._pinned = PinnedMemory(pinned_bytes, self._stream.synchronize)
        self._numbers = PageNumbers()
        self._outgoing = [StagingBuffer() for _ in range(N_OUTGOING)]
        self._incoming = StagingBuffer()
        self._steps_before = torch.cuda.Event()
        self.staged_bytes = torch.cuda.get_device_properties(self._stream.device).total_memory // STAGED_SHARE
        self.most_direct_stored = MOST_DIRECT_STORED
        self.most_direct_loaded = MOST_DIRECT_LOADED

    def store(self, pages: Sequence[int], group: int = 0) -> Ticket:
        table = self._checked(pages, group)
        content = self._content(table, len(pages))
        steps = torch.cuda.current_stream()
        ended = torch.cuda.Event()
        if content.block and len(pages) <= self.most_direct_stored:
            self._store_directly(table, pages, content, (steps, ended))
            return CopyTicket(content, ended, loads=False)
        with current(self._stream, steps):
            for some, part in self._parts(table.n_bytes, len(pages)):
                ended = self._send(table, pages[some], content.memory[part], steps)
        return CopyTicket(content, ended, loads=False)

    def _send(
        self, table: PieceTable, pages: Sequence[int], travelling: torch.Tensor, steps: torch.cuda.Stream
    ) -> torch.cuda.Event:
        """Pages to the host by way of a buffer; the event says when they are there."""
        self._outgoing.append(self._outgoing.pop(0))
        staging = self._outgoing[0]
        staged = staging.bytes(len(travelling), table.device, (steps, self._stream))
        numbers = self._numbers.put(pages)
        steps.wait_event(staging.left)
        table.gather(numbers, staged, steps.cuda_stream)
        staging.filled.record(steps)
        self._stream.wait_event(staging.filled)
        travelling.copy_(staged, non_blocking=True)
        staging.left = torch.cuda.Event()  # a ticket may hold the one before
        staging.left.record(self._stream)
        self._numbers.read_at(staging.left)
        return staging.left

    def _store_directly(
        self,
        table: PieceTable,
        pages: Sequence[int],
        content: StagedPages,
        order: tuple[torch.cuda.Stream, torch.cuda.Event],
    ) -> None:
        """Steps wait until the pages are on the host, and so does the stream of pages, where memory is taken again."""
        steps, ended = order
        self._steps_before.record(self._stream)
        steps.wait_event(self._steps_before)
        table.gather(self._numbers.put(pages), content.memory, steps.cuda_stream)
        self._steps_before.record(steps)
        self._stream.wait_event(self._steps_before)
        ended.record(self._stream)
        self._numbers.read_at(ended)

    def load(self, pages: Sequence[int], group: int, content: HostPages) -> Ticket:
        table = self._checked(pages, group)
        assert isinstance(content, StagedPages), "content goes back to the kind of backend that stored it"
        api.check_content((content.form, content.n_pages), (table.form, len(pages)))
        steps = torch.cuda.current_stream()
        ended = torch.cuda.Event()
        self._steps_before.record(steps)
        if content.block and len(pages) <= self.most_direct_loaded:
            self._stream.wait_event(self._steps_before)
            table.scatter(self._numbers.put(pages), content.memory, self._stream.cuda_stream)
            ended.record(self._stream)
            self._numbers.read_at(ended)
        else:
            with current(self._stream, steps):
                for some, part in self._parts(table.n_bytes, len(pages)):
                    ended = self._receive(table, pages[some], content.memory[part])
        return CopyTicket(content, ended, loads=True)

    def _receive(self, table: PieceTable, pages: Sequence[int], travelling: torch.Tensor) -> torch.cuda.Event:
        """Put content into pages, which steps enqueued before may still read while it travels."""
        staged = self._incoming.bytes(len(travelling), table.device, (self._stream,))
        staged.copy_(travelling, non_blocking=True)
        self._stream.wait_event(self._steps_before)
        table.scatter(self._numbers.put(pages), staged, self._stream.cuda_stream)
        ended = torch.cuda.Event()
        ended.record(self._stream)
        self._numbers.read_at(ended)
        return ended

    def _checked(self, pages: Sequence[int], group: int) -> PieceTable:
        table = self._tables.get(group)
        if table is None:
            table = self._tables[group] = PieceTable(self._kv, group)
        api.check_pages(pages, table.n_pages)
        return table

    def _content(self, table: PieceTable, n_pages: int) -> StagedPages:
        """Host memory for pages: pinned, while there is any."""
        n_bytes = n_pages * table.n_bytes
        block = self._pinned.take(n_bytes)
        memory = torch.empty(n_bytes, dtype=torch.uint8) if block is None else block.memory
        return StagedPages(table.form, n_pages, memory, block, self._pinned)

    def _parts(self, n_bytes: int, n_pages: int) -> Iterator[tuple[slice, slice]]:
        """The pages of a copy that travel together, and their bytes."""
        fitting = max(1, self.staged_bytes // n_bytes)
        most = min(fitting, MOST_STAGED)
        for first in range(0, n_pages, most):
            end = min(first + most, n_pages)
            yield slice(first, end), slice(first * n_bytes, end * n_bytes)
