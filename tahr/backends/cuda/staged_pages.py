"""Pages on their way between a CUDA device and pinned memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tahr.backends.api import Bytes, HostPage, PageForm
from tahr.backends.cuda.pinned import PinnedArena, Slot


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
