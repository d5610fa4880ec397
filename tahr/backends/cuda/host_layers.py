"""Bytes of layers in the host's memory, pinned in pieces."""

import torch

from tahr.backends.cuda.pinned import PinnedBlock

PIECE_BYTES = 256 << 20  # host memory that is pinned at a time
PAGE_BYTES = 4096
RATE_BYTES = 64 << 20  # copied a few times to measure
N_COPIES = 4


class HostBytes:
    """Host memory in pieces, pinned where the system allows it."""

    def __init__(self, n_bytes: int, device: torch.device):
        sizes = [min(PIECE_BYTES, n_bytes - at) for at in range(0, n_bytes, PIECE_BYTES)]
        self.blocks: list[PinnedBlock] = []
        if device.type == "cuda":
            self.blocks = [PinnedBlock(-(-size // PAGE_BYTES) * PAGE_BYTES) for size in sizes]
            self.pieces = [block.memory[:size] for block, size in zip(self.blocks, sizes, strict=True)]
        else:
            self.pieces = [torch.empty(size, dtype=torch.uint8) for size in sizes]

    @property
    def is_pinned(self) -> bool:
        """Whether the device copies all of it at the speed of the bus."""
        return all(block.is_pinned for block in self.blocks)

    def put(self, begin: int, content: torch.Tensor) -> None:
        """Copy bytes of the device to a place in it, and wait for that."""
        at = 0
        while at < len(content):
            piece = self.pieces[(begin + at) // PIECE_BYTES]
            first = (begin + at) % PIECE_BYTES
            n = min(len(content) - at, len(piece) - first)
            piece[first : first + n].copy_(content[at : at + n])
            at += n

    def send(self, buffer: torch.Tensor) -> None:
        """Copy all of it to the device, on the current stream."""
        at = 0
        for piece in self.pieces:
            buffer[at : at + len(piece)].copy_(piece, non_blocking=True)
            at += len(piece)


def measured_rate(device: torch.device) -> float:
    """Bytes a second that the bus copies from pinned memory."""
    host = HostBytes(RATE_BYTES, device)
    buffer = torch.empty(RATE_BYTES, dtype=torch.uint8, device=device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    host.send(buffer)
    begin.record()
    for _ in range(N_COPIES):
        host.send(buffer)
    end.record()
    end.synchronize()
    return 1e3 * N_COPIES * RATE_BYTES / float(begin.elapsed_time(end))
