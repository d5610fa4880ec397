"""Adapters of the CUDA backend: factors on the device, a table that tells kernels where, and the rows of a step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from tahr.backends.api import (
    MAX_ADAPTERS,
    LinearShape,
    LoraBank,
    LoraFactors,
    Rows,
    StepLimits,
)
from tahr.backends.cuda.kernels.lora import (
    ENTRY,
    MAX_TARGETS,
    LoraCall,
    ShrunkRows,
    empty_rows,
    expand,
    expand_behind,
    shrink,
)
from tahr.backends.cuda.ops.lora_rows import DeviceLoraRows, most_tiles
from tahr.backends.cuda.ops.spare_rows import RowRun, RowRuns, SpareRows, whole_tiles
from tahr.backends.cuda.ops.vectors import SHORT
from tahr.weights.tensor import HostTensor

HEADER = 8  # int32 numbers before the records: how many tiles each round has; records begin at a multiple of 32 bytes
DTYPES = {short: dtype for dtype, short in SHORT.items()}
Prepared = dict[str, tuple[torch.Tensor, torch.Tensor, float]]


class AddedColumns(NamedTuple):
    """Additions of adapters to some columns of an output."""

    begin: int
    width: int
    rows: ShrunkRows


class CudaLoraBank(LoraBank):
    """Factors take the type of the model's matrices. Kernels find them by addresses, so a slot may change at any time
    between two steps, and a captured graph goes on.

    Where linears have `SpareRows`, first factors move there while all adapters find rows; steps then multiply `n_used`
    of them. An adapter that finds none sends all back to kernels of their own, which read first factors anywhere.
    """

    def __init__(self, shapes: Mapping[str, LinearShape], limits: StepLimits, device: torch.device):
        super().__init__(shapes, limits)
        self._device = device
        self._n_seqs = limits.n_seqs
        kernels = {shape.kernel.rpartition(" ")[2] for shape in shapes.values()}
        short = "bf16"  # block-quantised matrices meet rows in bf16
        if "f32" in kernels:
            short = "f32"
        elif kernels == {"f16"}:
            short = "f16"
        self.dtype = DTYPES[short]
        self._index = {name: i for i, name in enumerate(shapes)}
        self._table = torch.zeros((len(shapes), MAX_ADAPTERS + 1, ENTRY), dtype=torch.int64, device=device)
        self._kept: dict[int, Prepared] = {}
        self._spare_rows: dict[str, SpareRows] = {}
        for name, shape in shapes.items():
            spare = shape.spare_rows
            if spare and spare.matrix.dtype == self.dtype and spare.claim(self):
                self._spare_rows[name] = spare
        self._free = RowRuns(min((each.n_rows for each in self._spare_rows.values()), default=0))
        self._runs = np.zeros((MAX_ADAPTERS + 1, 2), np.int32)
        self._most_used = 0
        self._there = {
            kind: DeviceLoraRows(rows.rows.shape[1], limits.n_seqs, self._runs, device)
            for kind, rows in self.rows.items()
        }
        self.rows = {kind: there.host for kind, there in self._there.items()}

    @property
    def n_used(self) -> int:
        """Rows behind each linear that steps multiply; 0 while an adapter is not there."""
        return self._most_used if len(self._free.by_slot) == len(self._kept) else 0

    @property
    def plan_key(self) -> tuple[int, ...]:
        return *super().plan_key, self.n_used

    @property
    def note(self) -> str:
        n = sum(whole_tiles(rank_of(each)) for each in self._kept.values())
        n_spare = self._free.n_rows
        if self.n_used:
            behind = f"behind the matrices of {len(self._spare_rows)} of {len(self.shapes)} linears"
            return f"Adapters: first factors are rows {behind}, {n} of {n_spare} taken"
        why = f"they take {n} rows of --lora-rows {n_spare}" if self._spare_rows else "no matrix has room behind it"
        return f"Adapters: both factors have kernels of their own, because {why}"

    def prepare(self, factors: Mapping[str, LoraFactors]) -> Prepared:
        return {name: (self._to_device(each.a), self._to_device(each.b), each.scale) for name, each in factors.items()}

    def _to_device(self, tensor: HostTensor) -> torch.Tensor:
        return torch.from_numpy(tensor.dense()).to(self.dtype).to(self._device)

    def put(self, slot: int, prepared: Prepared) -> None:
        if run := self._free.take(slot, rank_of(prepared)):
            prepared = self._moved(prepared, run)
            self._runs[slot] = run.first, run.n
            # Grows in few steps up to all: each number has plans of its own.
            self._most_used = max(self._most_used, min(1 << (self._free.end - 1).bit_length(), self._free.n_rows))
        entries = torch.zeros((len(self._index), ENTRY), dtype=torch.int64)
        for name, (a, b, scale) in prepared.items():
            bits = int(np.float32(scale).view(np.int32))
            entries[self._index[name]] = torch.tensor([a.data_ptr(), b.data_ptr(), a.shape[0], bits])
        self._table[:, slot] = entries.to(self._device)
        self._kept[slot] = prepared
        self.grow(prepared, rank_of(prepared))
        self.send()

    def _moved(self, prepared: Prepared, run: RowRun) -> Prepared:
        """An adapter whose first factors are rows behind linears, where these have room."""
        moved = dict(prepared)
        for name in prepared.keys() & self._spare_rows.keys():
            a, b, scale = prepared[name]
            moved[name] = self._spare_rows[name].factor(name, run, len(a)).copy_(a), b, scale
        return moved

    def clear(self, slot: int) -> None:
        self._table[:, slot] = 0
        self._kept.pop(slot, None)
        self._free.give_back(slot)
        for other in self._kept.keys() - self._free.by_slot.keys():
            if self._free.find(rank_of(self._kept[other])):
                self.put(other, self._kept[other])
        self.send()

    def send(self) -> None:
        for there in self._there.values():
            there.send(self._table)

    def spare_rows_of(self, names: Sequence[str]) -> SpareRows | None:
        """Where the first factors of these linears lie behind their matrices; None: elsewhere, or there are none."""
        found = self._spare_rows.get(names[0]) if self.n_used and self.targets.intersection(names) else None
        return found if found and found.names == tuple(names) and self._is_run(names) else None

    def finish_behind(self, out: torch.Tensor, rows: Rows, names: Sequence[str], heights: Sequence[int]) -> None:
        """Add to `out`, a product with a `SpareRows`, what second factors make of its last columns."""
        for _, call in self._parts(rows, names, heights, len(out)):
            expand_behind(out, call)

    def begin(
        self,
        x: torch.Tensor,
        rows: Rows,
        names: Sequence[str],
        heights: Sequence[int],
    ) -> list[AddedColumns]:
        """Let rows of x meet the first factors of the adapters of these linears.

        The kernel overlaps with the one that makes x, which it could not after the linears: their library's kernels let
        none start early.
        """
        if not self.targets.intersection(names):
            return []
        parts = self._parts(rows, names, heights, len(x))
        made = [AddedColumns(begin, sum(call.heights), empty_rows(x, call)) for begin, call in parts]
        for each in made:
            shrink(x, each.rows)
        return made

    def finish(self, out: torch.Tensor, made: Sequence[AddedColumns]) -> None:
        """Add to `out`, in which the outputs of the linears lie side by side, what was begun for them."""
        for begin, width, rows in made:
            expand(out[:, begin : begin + width], rows)

    def _parts(
        self, rows: Rows, names: Sequence[str], heights: Sequence[int], n: int
    ) -> Iterator[tuple[int, LoraCall]]:
        """Arguments of kernels by the first column of their output, once for linears whose tables follow each other."""
        if not self._is_run(names):
            for i, name in enumerate(names):
                for begin, call in self._parts(rows, [name], heights[i : i + 1], n):
                    yield begin + sum(heights[:i]), call
            return
        there = self._there[Rows.LOGITS if rows is Rows.LOGITS else Rows.TOKENS]
        first = self._index[names[0]]
        n_most = most_tiles(n, self._n_seqs)
        for k in range(self.n_rounds):
            yield 0, LoraCall(there.round(k, self._table), first, n_most, heights, self.most_rank, self.dtype)

    def _is_run(self, names: Sequence[str]) -> bool:
        """Whether the tables of these linears follow each other."""
        places = [self._index.get(name, -1) for name in names]
        return len(places) <= MAX_TARGETS and places == list(range(places[0], places[0] + len(places)))


def rank_of(prepared: Prepared) -> int:
    return max(len(a) for a, _, _ in prepared.values())
