"""Memory of the CPU backend's activations: blocks are reused as soon as no op can read them any more."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tahr._native import address_of
from tahr.backends.api import Ints

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


class MemoryBlock:
    """An aligned piece of memory. Pages of it that no step touches cost nothing."""

    __slots__ = ("address", "bytes")

    def __init__(self, n_bytes: int):
        memory = np.empty(n_bytes + ALIGNMENT, np.uint8)
        skip = -address_of(memory) % ALIGNMENT
        self.bytes = memory[skip : skip + n_bytes]
        self.address = address_of(self.bytes)


class Arena:
    """Blocks of queues that run one after the other. Ops run in the order they were enqueued, so a block is free once
    its last reader is in."""

    def __init__(self) -> None:
        self._free: list[MemoryBlock] = []

    def take(self, n_bytes: int) -> MemoryBlock:
        """The smallest free block that is large enough, or a new one."""
        fitting = [block for block in self._free if len(block.bytes) >= n_bytes]
        if not fitting:
            return MemoryBlock(n_bytes)
        best = min(fitting, key=lambda block: len(block.bytes))
        self._free.remove(best)
        return best

    def give(self, block: MemoryBlock) -> None:
        """Take a block back."""
        self._free.append(block)


class Count:
    """How many rows are alive: a number that is read when an op runs, at most `limit`."""

    __slots__ = ("_numbers", "address", "index", "limit")

    def __init__(self, array: Ints, index: int, limit: int):
        self._numbers = array.data
        self.index = index
        self.limit = limit
        self.address = address_of(array) + 4 * index

    @property
    def now(self) -> int:
        """The number at this moment."""
        return self._numbers[self.index]


class Buffer:
    """Memory for rows `row_bytes` wide; its block goes back to the arena when the last reference is gone."""

    __slots__ = ("_live", "_rows", "address", "arena", "block", "count", "quantised", "row_bytes")

    def __init__(self, arena: Arena, count: Count, row_bytes: int):
        self.arena = arena
        self.count = count
        self.row_bytes = row_bytes
        self.block = arena.take(max(1, count.limit) * row_bytes)
        self.address = self.block.address
        self.quantised: Any = None  # the QuantisedRows of these rows, if any
        self._rows: NDArray[np.float32] | None = None  # capacity, whatever is live
        self._live: NDArray[np.float32] | None = None  # the last live rows that were read

    def __del__(self) -> None:
        if block := getattr(self, "block", None):
            self.arena.give(block)

    def floats(self) -> NDArray[np.float32]:
        """The live rows; no copy."""
        if self._rows is None:
            n_rows = max(1, self.count.limit)
            self._rows = self.block.bytes[: n_rows * self.row_bytes].view(np.float32).reshape(n_rows, -1)
        if self._live is None or len(self._live) != self.count.now:
            self._live = self._rows[: self.count.now]
        return self._live


class JoinedBuffer(Buffer):
    """Several rows of another buffer as one: the same memory, which stays as long as this."""

    __slots__ = ("_source",)

    def __init__(self, source: Buffer, count: Count, n: int):
        self._source = source
        self.arena = source.arena
        self.count = count
        self.row_bytes = n * source.row_bytes
        self.block = source.block
        self.address = source.address
        self.quantised = None
        self._rows = None
        self._live = None

    def __del__(self) -> None:
        """The source gives its block back."""


class Routes:
    """Which experts the rows of a step go to: the (row, expert) pairs sorted by expert, and the shares of each row."""

    __slots__ = ("n_experts", "n_pairs", "order", "shares", "starts")

    def __init__(self, arena: Arena, count: Count, n_experts: int, n_active: int):
        self.n_experts = n_experts
        self.shares: Buffer | None = None  # only where results are weighted
        self.order = Buffer(arena, count, 4 * n_active)
        self.starts = Buffer(arena, Count(np.ones(1, np.int32), 0, 1), 4 * (n_experts + 1))
        # The last start is the number of pairs, known only when the step runs.
        self.n_pairs = Count(self.starts.block.bytes.view(np.int32), n_experts, count.limit * n_active)
