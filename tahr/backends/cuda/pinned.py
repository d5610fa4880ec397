"""Host memory locked in place, which the device copies from and to at the speed of the bus."""

import atexit
import logging
import mmap
from collections import defaultdict, deque
from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from heapq import heapify, heappop, heappush
from threading import Event, Thread
from time import perf_counter
from typing import NamedTuple, Protocol

import torch

PIECE_BYTES = 64 << 20
N_NUMBERS = 1 << 16  # page numbers of a sheet; no launch takes more

log = logging.getLogger("tahr.backends")


class PinnedBlock:
    """A block of whole pages of the system: torch would lock the next power of two."""

    def __init__(self, n_bytes: int):
        self.memory = torch.frombuffer(mmap.mmap(-1, n_bytes), dtype=torch.uint8)
        self._unregister = torch.cuda.cudart().cudaHostUnregister
        self.is_pinned = int(torch.cuda.cudart().cudaHostRegister(self.memory.data_ptr(), n_bytes, 0)) == 0

    def __del__(self) -> None:
        if getattr(self, "is_pinned", False):
            self._unregister(self.memory.data_ptr())


class Slot(NamedTuple):
    """A part of a piece, by number: neighbours have numbers that follow each other."""

    piece: int
    number: int
    n_bytes: int


class PinnedArena:
    """Pinned memory of at most `limit` bytes: pieces that are locked one by one, and cut into slots of equal size.

    The first piece is there at once. The others are locked on a thread of their own, with pauses as long as each takes,
    because the system locks half a second a GiB, and the device waits meanwhile. A piece without a slot in use may be
    cut anew.
    """

    def __init__(self, limit: int, largest_slot: int):
        self.limit = limit
        self.n_bytes = 0
        self._piece_bytes = max(min(PIECE_BYTES, limit), largest_slot)
        self._pieces: list[PinnedBlock] = []
        self._uncut: deque[int] = deque()
        self._free: dict[int, list[Slot]] = defaultdict(list)  # heaps, by size
        self._n_used: dict[int, int] = {}  # slots in use, by piece that is cut
        self._given: deque[Slot] = deque()
        self._grow_by_one()
        if self.grows:
            ends = Event()
            thread = Thread(target=self._grow, args=(ends,), name="tahr-pinning", daemon=True)
            thread.start()
            atexit.register(end, thread, ends)

    @property
    def grows(self) -> bool:
        """Whether more memory is going to be locked."""
        return self.n_bytes + self._piece_bytes <= self.limit

    def n_free(self, n_bytes: int) -> int:
        """How many slots of a size can be taken."""
        self._take_back()
        return len(self._free[n_bytes]) + len(self._uncut) * (self._piece_bytes // n_bytes)

    def take(self, n_bytes: int, n: int) -> list[Slot]:
        """Slots of a size, as many as there are, those that follow each other together."""
        self._take_back()
        free = self._free[n_bytes]
        while len(free) < n and self._uncut:
            self._cut(self._uncut.popleft(), n_bytes)
        taken = [heappop(free) for _ in range(min(n, len(free)))]
        for slot in taken:
            self._n_used[slot.piece] += 1
        return taken

    def give(self, slot: Slot) -> None:
        """Take a slot back, on any thread: copies that follow are behind those that still use it."""
        self._given.append(slot)

    def memory(self, first: Slot, n: int = 1) -> torch.Tensor:
        """The bytes of a slot and of those after it."""
        begin = first.number * first.n_bytes
        return self._pieces[first.piece].memory[begin : begin + n * first.n_bytes]

    def _take_back(self) -> None:
        emptied = False
        while self._given:
            slot = self._given.popleft()
            heappush(self._free[slot.n_bytes], slot)
            self._n_used[slot.piece] -= 1
            emptied |= self._n_used[slot.piece] == 0
        if emptied:
            self._uncut_empty()

    def _uncut_empty(self) -> None:
        empty = {piece for piece, n in self._n_used.items() if n == 0}
        for free in self._free.values():
            free[:] = [slot for slot in free if slot.piece not in empty]
            heapify(free)
        for piece in sorted(empty):
            del self._n_used[piece]
            self._uncut.append(piece)

    def _cut(self, piece: int, n_bytes: int) -> None:
        self._n_used[piece] = 0
        for number in range(self._piece_bytes // n_bytes):
            heappush(self._free[n_bytes], Slot(piece, number, n_bytes))

    def _grow(self, ends: Event) -> None:
        began = perf_counter()
        while self.grows and not ends.wait(perf_counter() - began):
            began = perf_counter()
            self._grow_by_one()

    def _grow_by_one(self) -> None:
        if not self.grows:
            return
        block = PinnedBlock(self._piece_bytes)
        if not block.is_pinned:
            self.limit = self.n_bytes
            log.warning("The system pins no more than %d MB; other copies of pages are slower.", self.limit >> 20)
            return
        self._pieces.append(block)
        self.n_bytes += self._piece_bytes
        self._uncut.append(len(self._pieces) - 1)


def end(thread: Thread, ends: Event) -> None:
    """Wait for the piece that is being locked: an interpreter that ends under native code aborts the process."""
    ends.set()
    thread.join()


def in_runs(slots: ListOf[Slot | None]) -> Iterator[tuple[int, int]]:
    """Slots that follow each other, as the places of the first and of the one after the last; None has no neighbour."""
    begin = 0
    for at in range(1, len(slots) + 1):
        before = slots[at - 1]
        after = slots[at] if at < len(slots) else None
        if before and after and before._replace(number=before.number + 1) == after:
            continue
        yield begin, at
        begin = at


class Ended(Protocol):
    """The event that says when a copy has ended."""

    def synchronize(self) -> None: ...


class NumberSheet:
    """Page numbers that the device reads where they lie: to copy them would take a tenth of the time of a page."""

    def __init__(self) -> None:
        self.numbers = torch.empty(N_NUMBERS, dtype=torch.int32, pin_memory=torch.cuda.is_available())
        self.values = self.numbers.numpy()
        self.read: Ended | None = None  # end of the last copy from it

    def __del__(self) -> None:
        if read := getattr(self, "read", None):
            read.synchronize()


class PageNumbers:
    """Two sheets: one is filled while copies read the other, which have ended long before it is needed."""

    def __init__(self) -> None:
        self._sheet = NumberSheet()
        self._other = NumberSheet()
        self._at = 0

    def put(self, pages: ListOf[int]) -> torch.Tensor:
        """Numbers for one launch, until the event given to `read_at` has happened."""
        if self._at + len(pages) > N_NUMBERS:
            sheet = self._sheet
            self._sheet = self._other
            self._other = sheet
            self._at = 0
            if self._sheet.read:
                self._sheet.read.synchronize()
        begin = self._at
        self._at += len(pages)
        self._sheet.values[begin : self._at] = pages
        return self._sheet.numbers[begin : self._at]

    def read_at(self, ended: Ended) -> None:
        """Say when the numbers of the last launches have been read."""
        self._sheet.read = ended
