"""Adapters of the CUDA backend: factors on the device, a table that tells kernels where, and the rows of a step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from tahr.backends.api import (
    LORA_TILE,
    MAX_ADAPTERS,
    MAX_STACK,
    LinearShape,
    LoraBank,
    LoraFactors,
    LoraRows,
    Rows,
    StepLimits,
)
from tahr.backends.cuda.kernels.lora import ENTRY, RECORD, LoraCall, ShrunkRows, expand, room, shrink
from tahr.backends.cuda.steps import N_STAGING, Staging
from tahr.backends.cuda.weights import SHORT
from tahr.weights.tensor import HostTensor

HEADER = 8  # int32 numbers before the records: how many tiles each round has
MAX_TARGETS = 3  # linears whose adapters one kernel adds
DTYPES = {short: dtype for dtype, short in SHORT.items()}
Prepared = dict[str, tuple[torch.Tensor, torch.Tensor, float]]


class AddedColumns(NamedTuple):
    """What adapters add to some columns of an output."""

    begin: int
    width: int
    rows: ShrunkRows


class DeviceLoraRows:
    """The rows of one kind, on both sides."""

    def __init__(self, n: int, device: torch.device):
        n_numbers = HEADER + MAX_STACK * n * RECORD
        self._host = torch.zeros(n_numbers, dtype=torch.int32)
        self._there = torch.zeros(n_numbers, dtype=torch.int32, device=device)
        self._staging = [Staging(n_numbers) for _ in range(N_STAGING)] if device.type == "cuda" else []
        numbers = self._host.numpy()
        records = numbers[HEADER:].reshape(MAX_STACK, n, RECORD)
        scales = numbers.view(np.float32)[HEADER:].reshape(MAX_STACK, n, RECORD)[:, :, 4]
        self.host = LoraRows(numbers[:MAX_STACK], records[:, :, :3], records[:, :, 3], scales)
        self.n_tiles = self._there[:HEADER]
        self.records = self._there[HEADER:].view(MAX_STACK, n, RECORD).unbind()

    def send(self) -> None:
        """Bring what the host wrote to the device, behind everything enqueued."""
        n_rounds = int(np.count_nonzero(self.host.n_tiles))
        last = max(0, n_rounds - 1)
        n_entries = int(self.host.tiles[last, : self.host.n_tiles[last], 1:].sum(1).max(initial=0))
        n = HEADER + (last * self.host.rows.shape[1] + n_entries) * RECORD
        if not self._staging:
            self._there[:n].copy_(self._host[:n])
            return
        self._staging.append(self._staging.pop(0))
        self._staging[0].send(self._host[:n].numpy(), self._there[:n])


class CudaLoraBank(LoraBank):
    """Factors take the type of the model's matrices. Kernels find them by addresses, so a slot may change at any time
    between two steps, and a captured graph goes on."""

    def __init__(self, shapes: Mapping[str, LinearShape], limits: StepLimits, device: torch.device):
        super().__init__(shapes, limits)
        self._device = device
        self._n_seqs = limits.n_seqs
        kernels = {shape.kernel.rpartition(" ")[2] for shape in shapes.values()}
        # Block-quantised matrices meet rows in bf16.
        self.dtype = DTYPES["f32" if "f32" in kernels else "f16" if kernels == {"f16"} else "bf16"]
        self._index = {name: i for i, name in enumerate(shapes)}
        self._table = torch.zeros((len(shapes), MAX_ADAPTERS + 1, ENTRY), dtype=torch.int64, device=device)
        self._kept: dict[int, Prepared] = {}
        self._there = {kind: DeviceLoraRows(rows.rows.shape[1], device) for kind, rows in self.rows.items()}
        self.rows = {kind: there.host for kind, there in self._there.items()}

    def prepare(self, factors: Mapping[str, LoraFactors]) -> Prepared:
        return {name: (self._to_device(each.a), self._to_device(each.b), each.scale) for name, each in factors.items()}

    def _to_device(self, tensor: HostTensor) -> torch.Tensor:
        return torch.from_numpy(tensor.dense()).to(self.dtype).to(self._device)

    def put(self, slot: int, prepared: Prepared) -> None:
        entries = torch.zeros((len(self._index), ENTRY), dtype=torch.int64)
        for name, (a, b, scale) in prepared.items():
            bits = int(np.float32(scale).view(np.int32))
            entries[self._index[name]] = torch.tensor([a.data_ptr(), b.data_ptr(), a.shape[0], bits])
        self._table[:, slot] = entries.to(self._device)
        self._kept[slot] = prepared
        self.grow(prepared, max(a.shape[0] for a, _, _ in prepared.values()))

    def clear(self, slot: int) -> None:
        self._table[:, slot] = 0
        self._kept.pop(slot, None)

    def send(self) -> None:
        for there in self._there.values():
            there.send()

    def begin(self, x: torch.Tensor, rows: Rows, names: Sequence[str], heights: Sequence[int]) -> list[AddedColumns]:
        """Let rows of x meet the first factors of the adapters of these linears.

        The kernel overlaps with the one that makes x, which it could not after the linears: their library's kernels let
        none start early.
        """
        if not self.targets.intersection(names):
            return []
        parts = self._parts(rows, names, heights, len(x))
        made = [AddedColumns(begin, sum(call.heights), room(x, call)) for begin, call in parts]
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
        """What kernels are told, by the first column of its output: once for linears whose tables follow each other."""
        if not self._is_run(names):
            for i, name in enumerate(names):
                for begin, call in self._parts(rows, [name], heights[i : i + 1], n):
                    yield begin + sum(heights[:i]), call
            return
        there = self._there[Rows.LOGITS if rows is Rows.LOGITS else Rows.TOKENS]
        table = self._table[self._index[names[0]]]
        most_tiles = min(n, n // LORA_TILE + self._n_seqs)
        for k, records in enumerate(there.records[: self.n_rounds]):
            n_tiles = there.n_tiles[k : k + 1]
            yield 0, LoraCall(records, n_tiles, most_tiles, table, heights, self.most_rank, self.dtype)

    def _is_run(self, names: Sequence[str]) -> bool:
        """Whether the tables of these linears follow each other."""
        places = [self._index.get(name, -1) for name in names]
        return len(places) <= MAX_TARGETS and places == list(range(places[0], places[0] + len(places)))
