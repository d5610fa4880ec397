"""Memory of a Vulkan device: pieces of buffers, and rows in blocks that are used again."""

from typing import Any, NamedTuple

import numpy as np

from tahr import _vulkan as native
from tahr.backends.api import Bytes, Ints

ALIGNMENT = 256  # bytes
LEAST_BUFFER = 1 << 20  # bytes of the smallest buffer that several pieces share
MOST_BUFFER = 64 << 20
STAGING_BYTES = 16 << 20
N_CONSTANTS = 1 << 16


class Span(NamedTuple):
    """A piece of a buffer."""

    buffer: native.Buffer
    offset: int
    n_bytes: int

    @property
    def address(self) -> int:
        return self.buffer.address + self.offset

    @property
    def range(self) -> tuple[int, int]:
        """How an op names what it reads or writes."""
        return self.address, self.n_bytes

    def part(self, offset: int, n_bytes: int) -> "Span":
        assert 0 <= offset <= offset + n_bytes <= self.n_bytes
        return Span(self.buffer, self.offset + offset, n_bytes)


class DeviceMemory:
    """Takes pieces of the device's memory; small ones share buffers, which grow with what was taken."""

    def __init__(self, device: native.Device):
        self.device = device
        self._buffer: native.Buffer | None = None
        self._used = 0
        self._staging: native.Buffer | None = None

    def take(self, n_bytes: int) -> Span:
        """A new piece of so many bytes; what it holds at first means nothing."""
        n_bytes = -(-n_bytes // ALIGNMENT) * ALIGNMENT
        if n_bytes > LEAST_BUFFER // 2 and (self._buffer is None or n_bytes > self._buffer.n_bytes - self._used):
            return Span(native.Buffer(self.device, n_bytes, native.Home.DEVICE), 0, n_bytes)
        if self._buffer is None or self._used + n_bytes > self._buffer.n_bytes:
            size = LEAST_BUFFER if self._buffer is None else min(MOST_BUFFER, 2 * self._buffer.n_bytes)
            self._buffer = native.Buffer(self.device, size, native.Home.DEVICE)
            self._used = 0
        self._used += n_bytes
        return Span(self._buffer, self._used - n_bytes, n_bytes)

    @property
    def staging(self) -> native.Buffer:
        """Memory of the host by which bytes go where it does not see."""
        if self._staging is None:
            n_bytes = ALIGNMENT if self.device.is_unified else STAGING_BYTES
            self._staging = native.Buffer(self.device, n_bytes, native.Home.HOST)
        return self._staging

    def write(self, span: Span, values: Any) -> None:
        """Put an array's bytes at the begin of a piece, after everything submitted."""
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        assert raw.nbytes <= span.n_bytes
        span.buffer.write(span.offset, raw, self.staging)

    def read(self, span: Span, n_bytes: int) -> Bytes:
        """The first bytes of a piece, after everything submitted."""
        found = np.empty(n_bytes, np.uint8)
        span.buffer.read(span.offset, found, self.staging)
        return found

    def holding(self, values: Any) -> Span:
        """A piece that holds an array."""
        span = self.take(max(1, np.asarray(values).nbytes))
        self.write(span, values)
        return span


class BlockArena:
    """Blocks of one queue, or of the plans, which run one after the other: free once no tensor has them."""

    def __init__(self, memory: DeviceMemory):
        self._memory = memory
        self._free: list[Span] = []

    def take(self, n_bytes: int) -> Span:
        """The smallest free block that is large enough, or a new one."""
        fitting = [block for block in self._free if block.n_bytes >= n_bytes]
        if not fitting:
            return self._memory.take(n_bytes)
        best = min(fitting, key=lambda block: block.n_bytes)
        self._free.remove(best)
        return best

    def give(self, block: Span) -> None:
        """Take a block back."""
        self._free.append(block)


class RowCount(NamedTuple):
    """How many rows are alive: a number that ops read on the device, at most `limit`."""

    numbers: Ints  # where the host has it
    place: int
    limit: int
    span: Span  # where the device has it

    @property
    def now(self) -> int:
        return int(self.numbers[self.place])


class Constants:
    """Numbers that ops read by their addresses: rows of tensors that are in no step."""

    def __init__(self, memory: DeviceMemory):
        self._numbers = np.arange(N_CONSTANTS, dtype=np.int32)
        self._span = memory.holding(self._numbers)

    def count(self, n: int) -> RowCount:
        assert n < N_CONSTANTS
        return RowCount(self._numbers, n, n, self._span.part(4 * n, 4))


class RowBuffer:
    """Room for rows; its block goes back to the arena when the last reference is gone."""

    __slots__ = ("arena", "count", "halved", "rounded", "row_bytes", "span")

    def __init__(self, arena: BlockArena, count: RowCount, row_bytes: int):
        self.arena = arena
        self.count = count
        self.row_bytes = row_bytes
        self.rounded: Any = None  # the RoundedRows of these rows, if any
        self.halved: Any = None  # their HalvedRows
        self.span = arena.take(max(1, count.limit) * row_bytes)

    def __del__(self) -> None:
        if hasattr(self, "span"):
            self.arena.give(self.span)
