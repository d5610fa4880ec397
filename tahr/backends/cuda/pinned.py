"""Host memory locked in place, which the device copies from and to at the speed of the bus."""

import logging
import mmap
from collections import defaultdict
from collections.abc import Callable

import torch

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
