"""Spare rows behind matrices, in which the first factors of adapters are more rows of the same product.

The product of rows with such a matrix gives the outputs of its linears, and in further columns what the first factors
of all adapters make of them. A row needs those of its own adapter only, but reading so few rows more costs less than a
kernel that picks them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import ReferenceType, ref

import torch

from tahr.backends.api import LORA_TILE, Linear, LoraBank


@dataclass(eq=False, slots=True)
class SpareRows:
    """The matrices of linears, one below the other, and behind them `n_rows` for each linear."""

    names: tuple[str, ...]  # names of the linears
    matrix: torch.Tensor  # [n_out + len(names) * n_rows, n_cols]
    bias: torch.Tensor | None  # bias of all rows, zeros behind that of the linears
    n_out: int
    n_rows: int
    owner: "ReferenceType[LoraBank] | None" = None

    def claim(self, bank: LoraBank) -> bool:
        """Whether the rows are this bank's. Engines on the same decoder have a bank each: the first has the rows."""
        if self.owner is None or self.owner() is None:
            self.owner = ref(bank)
        return self.owner() is bank

    def begin(self, n_used: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The matrix and its bias up to the end of so many rows of each linear."""
        end = self.n_out + len(self.names) * n_used
        return self.matrix[:end], None if self.bias is None else self.bias[:end]

    def factor(self, name: str, place: "RowRun", rank: int) -> torch.Tensor:
        """The rows of one linear's first factor: an adapter has those of its linears one after the other."""
        at = self.n_out + len(self.names) * place.first + self.names.index(name) * place.n
        return self.matrix[at : at + rank]


def with_spare_rows(linears: Sequence[Linear], n_rows: int) -> SpareRows:
    """Copies the matrices of linears to memory with spare rows behind them."""
    matrices = [linear.weight.data for linear in linears]
    n_out = sum(len(matrix) for matrix in matrices)
    n_behind = len(linears) * n_rows
    whole = matrices[0].new_zeros((n_out + n_behind, matrices[0].shape[1]))
    torch.cat(matrices, out=whole[:n_out])
    biases = [linear.bias.data for linear in linears if linear.bias is not None]
    bias = torch.cat([*biases, biases[0].new_zeros(n_behind)]) if biases else None
    return SpareRows(tuple(linear.name for linear in linears), whole, bias, n_out, n_rows)


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows that an adapter has behind each linear."""

    first: int
    n: int


def whole_tiles(rank: int) -> int:
    """The rows that an adapter of that rank has."""
    return -(-rank // LORA_TILE) * LORA_TILE


class RowRuns:
    """Hands out runs of rows to the slots of adapters, in whole tiles, the first that fits."""

    def __init__(self, n_rows: int):
        self.n_rows = n_rows
        self.by_slot: dict[int, RowRun] = {}

    def find(self, rank: int) -> RowRun | None:
        """A run that an adapter of that rank may take; None if none is free."""
        n = whole_tiles(rank)
        first = 0
        for run in sorted(self.by_slot.values(), key=lambda run: run.first):
            if run.first - first >= n:
                break
            first = run.first + run.n
        return RowRun(first, n) if first + n <= self.n_rows else None

    def take(self, slot: int, rank: int) -> RowRun | None:
        """Such a run, for the adapter in a slot."""
        if run := self.find(rank):
            self.by_slot[slot] = run
        return run

    def give_back(self, slot: int) -> None:
        self.by_slot.pop(slot, None)

    @property
    def end(self) -> int:
        """End of the last run."""
        return max((run.first + run.n for run in self.by_slot.values()), default=0)
