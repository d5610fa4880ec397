"""Adapters of the CPU backend: their factors in the layout of the kernels, and tables in which steps find them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tahr import _native as native
from tahr._native import address_of
from tahr.backends.api import MAX_ADAPTERS, MAX_STACK, LinearShape, LoraBank, LoraFactors, LoraRows, StepLimits, Tensor
from tahr.backends.cpu.lora_factors import FactorMemory, PackedFactors, n_bytes
from tahr.backends.cpu.memory import Buffer, Count
from tahr.backends.cpu.queue import Queue

assert MAX_STACK == native.LORA_ROUNDS

SLOT = np.dtype(
    [("a", "<u8"), ("b", "<u8"), ("rank", "<i4"), ("type", "<i4"), ("scale", "<f4"), ("unused", "<i4")]
)  # the fields of `LoraSlot` in rows/lora.h


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
