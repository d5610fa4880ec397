"""Adapters of the CPU backend: their factors in the layout of the kernels, and tables in which steps find them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tahr import _native as native
from tahr._native import address_of
from tahr.backends.api import (
    MAX_ADAPTERS,
    MAX_STACK,
    LinearShape,
    LoraBank,
    LoraFactors,
    LoraRows,
    StepLimits,
    Tensor,
)
from tahr.backends.cpu.memory import ALIGNMENT, Buffer, Count, MemoryBlock
from tahr.backends.cpu.queue import Queue
from tahr.weights.tensor import HostTensor

assert MAX_STACK == native.LORA_ROUNDS
SLOT = np.dtype(
    [("a", "<u8"), ("b", "<u8"), ("rank", "<i4"), ("type", "<i4"), ("scale", "<f4"), ("unused", "<i4")]
)  # the fields of `LoraSlot` in rows/lora.h
TYPES = {"F32": (0, "<f4"), "F16": (1, "<u2"), "BF16": (2, "<u2")}  # the kernel's number, and what NumPy moves


class PackedFactors:
    """The factors of one linear as the kernels read them, in memory that is given out piece by piece."""

    __slots__ = ("a", "b", "rank", "row")

    def __init__(self, factors: LoraFactors, memory: "FactorMemory"):
        number, code = type_of(factors)
        self.a = padded_columns(values_of(factors.a, code), memory)
        self.b = panels(values_of(factors.b, code), memory)
        self.rank = factors.rank
        self.row = address_of(self.a), address_of(self.b), factors.rank, number, factors.scale, 0


class FactorMemory:
    """Memory for all factors of an adapter. One piece, since NumPy asks for huge pages where a piece is large: a step
    reads every byte of an adapter once, and page walks would show."""

    def __init__(self, n_bytes: int):
        self._block = MemoryBlock(n_bytes)
        self._taken = 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        n_bytes = math.prod(shape) * dtype.itemsize
        found = self._block.bytes[self._taken : self._taken + n_bytes].view(dtype).reshape(shape)
        self._taken += rounded_up(n_bytes, ALIGNMENT)
        return found


def rounded_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def n_bytes(factors: LoraFactors) -> int:
    """Bytes of both factors of a linear in whole panels."""
    value_bytes = np.dtype(type_of(factors)[1]).itemsize * factors.rank
    widths = factors.a.shape[1], factors.b.shape[0]
    return sum(rounded_up(rounded_up(n, native.LORA_PANEL) * value_bytes, ALIGNMENT) for n in widths)


def type_of(factors: LoraFactors) -> tuple[int, str]:
    """The row of `TYPES`. Two formats in one adapter are rare: both become f32 then."""
    same = factors.a.format.name == factors.b.format.name
    return TYPES[factors.a.format.name if same else "F32"]


def values_of(tensor: HostTensor, code: str) -> NDArray[Any]:
    """The numbers, or their bits where NumPy has no such numbers."""
    as_stored = TYPES[tensor.format.name][1] == code
    return tensor.data.view(code).reshape(tensor.shape) if as_stored else tensor.dense()


def padded_columns(a: NDArray[Any], memory: FactorMemory) -> NDArray[Any]:
    """[rank][columns], with zeros up to a whole panel."""
    padded = memory.take((a.shape[0], rounded_up(a.shape[1], native.LORA_PANEL)), a.dtype)
    padded[:, : a.shape[1]] = a
    padded[:, a.shape[1] :] = 0
    return padded


def panels(b: NDArray[Any], memory: FactorMemory) -> NDArray[Any]:
    """[n_rows][rank] as [panel][rank][row of the panel], with zeros up to a whole panel."""
    n_rows, rank = b.shape
    whole = np.pad(b, ((0, -n_rows % native.LORA_PANEL), (0, 0)))
    packed = memory.take((len(whole) // native.LORA_PANEL, rank, native.LORA_PANEL), b.dtype)
    packed[:] = whole.reshape(-1, native.LORA_PANEL, rank).swapaxes(1, 2)
    return packed


class CpuLoraBank(LoraBank):
    """A table per linear says for every slot where the factors are; the tables stay where they are."""

    def __init__(self, shapes: Mapping[str, LinearShape], limits: StepLimits):
        super().__init__(shapes, limits)
        self._tables: dict[str, NDArray[Any]] = {}
        self._kept: dict[int, Mapping[str, PackedFactors]] = {}

    def prepare(self, factors: Mapping[str, LoraFactors]) -> dict[str, PackedFactors]:
        memory = FactorMemory(sum(n_bytes(each) for each in factors.values()))
        in_order = [name for name in self.shapes if name in factors]  # the order in which a step reads them
        assert len(in_order) == len(factors), "factors of a linear that the model lacks"
        return {name: PackedFactors(factors[name], memory) for name in in_order}

    def put(self, slot: int, prepared: Mapping[str, PackedFactors]) -> None:
        for name, packed in prepared.items():
            self._table(name)[slot] = packed.row
        self._kept[slot] = prepared
        self.grow(prepared, max(packed.rank for packed in prepared.values()))

    def clear(self, slot: int) -> None:
        for name in self._kept.pop(slot, {}):
            self._tables[name][slot] = 0

    def _table(self, name: str) -> NDArray[Any]:
        if name not in self._tables:
            self._tables[name] = np.zeros(MAX_ADAPTERS + 1, SLOT)
        return self._tables[name]

    def enqueue(self, queue: Queue, x: Tensor, outs: Sequence[tuple[str, Tensor]]) -> None:
        """Let an op add to the outputs of some linears of x, which nobody has read yet."""
        wanted = [(self._table(name), out) for name, out in outs if name in self.targets]
        if not wanted:
            return
        assert len(wanted) <= native.MAX_LORA_TARGETS
        rows = self.rows_of(x.rows)
        most = rows.rows.shape[1]
        low = Buffer(queue.arena, Count(rows.n_tiles, 0, most), 4 * MAX_STACK * len(wanted) * self.most_rank)
        self._keep(queue, rows)
        queue.tape.lora(
            n_tiles=address_of(rows.n_tiles),
            tiles=address_of(rows.tiles),
            rows=address_of(rows.rows),
            scales=address_of(rows.scales),
            most=most,
            n_cols=x.width,
            x=x.data.address,
            low=low.address,
            most_rank=self.most_rank,
            targets=[(address_of(table), out.data.address, out.width) for table, out in wanted],
        )

    def _keep(self, queue: Queue, rows: LoraRows) -> None:
        queue.keep(self)
        for array in (rows.n_tiles, rows.tiles, rows.rows, rows.scales):
            queue.keep(array)
