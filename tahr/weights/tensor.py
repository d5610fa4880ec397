"""A named tensor as it lies in a weight file."""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tahr._native import address_of
from tahr.weights.formats import Format
from tahr.weights.source import Source

# Values dequantised at a time: temporaries stay within a few MB, whatever the tensor's size.
CHUNK = 1 << 18


@dataclass(frozen=True, eq=False)
class HostTensor:
    """A tensor of `shape` (the last axis is contiguous); `data` is a view of its bytes in the file, never a copy."""

    name: str
    format: Format
    shape: tuple[int, ...]
    data: NDArray[np.uint8] = field(repr=False)
    source: Source | None = field(default=None, repr=False)
    start: int = 0  # offset of `data` in `source`
    stored_as: str = ""  # format that backends which can shall round to: see `Backend.rounds_to`

    @property
    def n_values(self) -> int:
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        return int(self.data.size)

    @property
    def file_offset(self) -> int | None:
        """Where the bytes begin in the file they were mapped from; None where they were made, or lie in many places."""
        if self.source is None or self.source.file is None or not self.data.flags.c_contiguous:
            return None
        offset = address_of(self.data) - address_of(self.source.data)
        return offset if offset == self.start else None

    def dense(self) -> NDArray[np.float32]:
        """The values as a new f32 array."""
        blocks = self.data.reshape(-1, self.format.block_bytes)
        values = np.empty((len(blocks), self.format.block), np.float32)
        step = max(1, CHUNK // self.format.block)
        # A damaged file may hold scales that overflow; the values then say so themselves.
        with np.errstate(over="ignore", invalid="ignore"):
            for at in range(0, len(blocks), step):
                values[at : at + step] = self.format.dequantise(blocks[at : at + step])
        return values.reshape(self.shape)

    def forget(self) -> None:
        """Give a mapped tensor's pages back to the system, e.g. once a backend has repacked it; it stays readable."""
        if self.source is not None:
            self.source.forget(self.start, self.n_bytes)
