"""Pages of a CUDA device elsewhere: one kernel gathers all pieces of them, and one copy takes them to pinned memory.

Piece by piece a page travels at a sixth of the speed of the bus, and the host is busy with it all the time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from tahr.backends import api
from tahr.backends.api import HostPages, KVStore, PageForm, Ticket
from tahr.backends.cuda.kernels.common.pages import BLOCK, move
from tahr.backends.cuda.pinned import PinnedBlock, PinnedMemory

STAGED_BYTES = 1 << 26  # that travel at a time: pages are gathered while others travel
N_OUTGOING = 2  # buffers of as many
MOST_STAGED = 1 << 15  # pages of one launch
WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}  # what a kernel copies at a time, by bytes


class PieceTable:
    """Where the pages of a group lie: a layer's keys or values of one page are one run of memory.

    `pieces` has a row for every `BLOCK` words of such a run: its address in page 0, the bytes from page to page, the
    word of a staged page it begins at, and its words.
    """

    def __init__(self, kv: KVStore, group: int):
        self.form = api.page_form(kv, group)
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

    def numbers(self, pages: Sequence[int]) -> torch.Tensor:
        """The numbers of pages on the device, behind what is enqueued on the current stream."""
        numbers = torch.tensor(pages, dtype=torch.int32, pin_memory=self.device.type == "cuda")
        return numbers.to(self.device, non_blocking=True)

    def gather(self, pages: torch.Tensor, staged: torch.Tensor) -> None:
        """Copy pages, one after the other, to as many bytes."""
        move(self._rows(staged), self.pieces, pages, gathers=True)

    def scatter(self, pages: torch.Tensor, staged: torch.Tensor) -> None:
        """Put what `gather` gave into pages."""
        move(self._rows(staged), self.pieces, pages, gathers=False)

    def _rows(self, staged: torch.Tensor) -> torch.Tensor:
        return staged.view(self.word).view(-1, self.page_words)


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
    """Memory on the device that pages pass through. `ended` says when the last of them have left it."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.ended = torch.cuda.Event()

    def bytes(self, n: int, device: torch.device, user: torch.cuda.Stream) -> torch.Tensor:
        """So many bytes, which two streams use: the current one and `user`."""
        if len(self._memory) < n:
            self._memory = torch.empty(n, dtype=torch.uint8, device=device)
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
        self._outgoing = [StagingBuffer() for _ in range(N_OUTGOING)]
        self._incoming = StagingBuffer()

    def store(self, pages: Sequence[int], group: int = 0) -> Ticket:
        table = self._checked(pages, group)
        content = self._content(table, len(pages))
        numbers = table.numbers(pages)
        steps = torch.cuda.current_stream()
        for some, part in parts(table.form, len(pages)):
            self._outgoing.append(self._outgoing.pop(0))
            staging = self._outgoing[0]
            travelling = content.memory[part]
            staged = staging.bytes(len(travelling), table.device, self._stream)
            steps.wait_event(staging.ended)
            table.gather(numbers[some], staged)
            self._stream.wait_stream(steps)
            with torch.cuda.stream(self._stream):
                travelling.copy_(staged, non_blocking=True)
            staging.ended.record(self._stream)
        return CopyTicket(content, self._stream.record_event(), loads=False)

    def load(self, pages: Sequence[int], group: int, content: HostPages) -> Ticket:
        table = self._checked(pages, group)
        assert isinstance(content, StagedPages), "content goes back to the kind of backend that stored it"
        api.check_content((content.form, content.n_pages), (table.form, len(pages)))
        steps = torch.cuda.current_stream().record_event()
        with torch.cuda.stream(self._stream):
            numbers = table.numbers(pages)
            for some, part in parts(table.form, len(pages)):
                travelling = content.memory[part]
                staged = self._incoming.bytes(len(travelling), table.device, self._stream)
                staged.copy_(travelling, non_blocking=True)
                self._stream.wait_event(steps)  # which may still read what the pages held before
                table.scatter(numbers[some], staged)
        return CopyTicket(content, self._stream.record_event(), loads=True)

    def _checked(self, pages: Sequence[int], group: int) -> PieceTable:
        if group not in self._tables:
            self._tables[group] = PieceTable(self._kv, group)
        table = self._tables[group]
        api.check_pages(pages, table.n_pages)
        return table

    def _content(self, table: PieceTable, n_pages: int) -> StagedPages:
        """Host memory for pages: pinned, while there is any."""
        n_bytes = n_pages * table.form.n_bytes
        block = self._pinned.take(n_bytes)
        memory = torch.empty(n_bytes, dtype=torch.uint8) if block is None else block.memory
        return StagedPages(table.form, n_pages, memory, block, self._pinned)


def parts(form: PageForm, n_pages: int) -> Iterator[tuple[slice, slice]]:
    """The pages of a copy that travel together, and their bytes."""
    fitting = max(1, STAGED_BYTES // form.n_bytes)
    most = min(fitting, MOST_STAGED)
    for first in range(0, n_pages, most):
        end = min(first + most, n_pages)
        yield slice(first, end), slice(first * form.n_bytes, end * form.n_bytes)
