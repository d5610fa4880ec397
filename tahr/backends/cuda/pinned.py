"""Host memory locked in place, which the device copies from and to at the speed of the bus."""

import logging
import mmap
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from typing import Protocol

import torch

N_NUMBERS = 1 << 16  # page numbers of a sheet; no launch takes more

log = logging.getLogger("tahr.backends")


class PinnedBlock:
    """As many bytes as are wanted, in whole pages of the system: torch would lock the next power of two."""

    def __init__(self, n_bytes: int):
        self.memory = torch.frombuffer(mmap.mmap(-1, n_bytes), dtype=torch.uint8)
        self._unregister = torch.cuda.cudart().cudaHostUnregister
        self.is_pinned = int(torch.cuda.cudart().cudaHostRegister(self.memory.data_ptr(), n_bytes, 0)) == 0

    def __del__(self) -> None:
        if getattr(self, "is_pinned", False):
            self._unregister(self.memory.data_ptr())


class PinnedMemory:
    """Blocks of pinned memory, at most `limit` bytes of them. Blocks given back serve later copies of their size."""

    def __init__(self, limit: int, finish: Callable[[], None]):
        self.limit = limit
        self.n_bytes = 0
        self._finish = finish  # waits for the copies under way: blocks that were given back may still be written to
        self._free: dict[int, list[PinnedBlock]] = defaultdict(list)

    def take(self, n_bytes: int) -> PinnedBlock | None:
        """A block; None where the limit, or the system's, leaves no memory for it."""
        if free := self._free[n_bytes]:
            return free.pop()
        if self.n_bytes + n_bytes > self.limit:
            self._unpin_free()
        if not 0 < n_bytes <= self.limit - self.n_bytes:
            return None
        block = PinnedBlock(n_bytes)
        if not block.is_pinned:
            self.limit = self.n_bytes
            log.warning("The system pins no more than %d MB; other copies of pages are slower.", self.limit >> 20)
            return None
        self.n_bytes += n_bytes
        return block

    def give(self, block: PinnedBlock) -> None:
        """Take a block back, on any thread: copies that follow are behind those that still use it."""
        self._free[len(block.memory)].append(block)

    def _unpin_free(self) -> None:
        if any(self._free.values()):
            self._finish()
        for blocks in [*self._free.values()]:
            while blocks:
                self.n_bytes -= len(blocks.pop().memory)


class Ended(Protocol):
    """The event that says when a copy has ended."""

    def synchronize(self) -> None: ...


class NumberSheet:
    """Page numbers that the device reads where they lie: to copy them would take a tenth of the time of a page."""

    def __init__(self) -> None:
        self.numbers = torch.empty(N_NUMBERS, dtype=torch.int32, pin_memory=torch.cuda.is_available())
        self.values = self.numbers.numpy()
        self.read: Ended | None = None  # by the last copy that was given numbers of it

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
