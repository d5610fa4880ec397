"""Bytes of a file on their way to a CUDA device: several threads copy them to pinned memory, which the device reads."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray

N_THREADS = 8  # threads: one copies from the page cache at a tenth of what the bus takes
CHUNK = 1 << 25  # bytes that travel at a time
N_CHUNKS = 2  # one chunk is filled while the other travels

Bytes = NDArray[np.uint8]


class PinnedChunk:
    """Pinned memory that is written again only when the device has read it."""

    def __init__(self) -> None:
        self.memory = torch.empty(CHUNK, dtype=torch.uint8, pin_memory=True)
        self._sent = torch.cuda.Event()

    def send(self, data: Bytes, to: torch.Tensor, pool: ThreadPoolExecutor) -> None:
        """Copy bytes to the device behind everything enqueued; `data` has been read when this returns."""
        self._sent.synchronize()
        part = -(-len(data) // N_THREADS)
        pieces = [slice(at, at + part) for at in range(0, len(data), part)]
        memory: Bytes = self.memory.numpy()[: len(data)]
        list(pool.map(lambda piece: np.copyto(memory[piece], data[piece]), pieces))
        to.copy_(self.memory[: len(data)], non_blocking=True)
        self._sent.record()


class Uploads:
    """The pinned memory and the threads of this process."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(N_THREADS, "tahr-upload")
        self._chunks = [PinnedChunk() for _ in range(N_CHUNKS)]
        self._lock = Lock()  # several models may be loaded at once

    def send(self, data: Bytes, to: torch.Tensor) -> None:
        """Copy bytes to as many on the device, behind everything enqueued; `data` has been read when this returns."""
        for at in range(0, len(data), CHUNK):
            with self._lock:
                self._chunks.append(self._chunks.pop(0))
                self._chunks[0].send(data[at : at + CHUNK], to[at : at + CHUNK], self._pool)


@cache
def uploads() -> Uploads:
    return Uploads()
