"""Low-rank adapters (LoRA): what they add to linears, and which rows of a step meet which of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tahr.backends.api.step import StepLimits
from tahr.backends.api.tensors import Floats, Ints, Rows
from tahr.weights.tensor import HostTensor

MAX_ADAPTERS = 512  # loaded at once
MAX_RANK = 512  # limit for an adapter
MAX_STACK = 4  # adapters of one sequence
LORA_TILE = 16  # rows that meet an adapter together


@dataclass(frozen=True, slots=True)
class LinearShape:
    """A linear that an adapter may change. Its matrix is [n_rows, n_cols], `kernel` that of its `Weight`, `room` that
    of the `JoinedLinears` it belongs to."""

    n_rows: int
    n_cols: int
    kernel: str = ""
    spare_rows: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class LoraFactors:
    """An adapter's addition to one linear of x: scale * b @ (a @ x). Both are F32, F16 or BF16."""

    a: HostTensor  # [rank, n_cols]
    b: HostTensor  # [n_rows, rank]
    scale: float

    @property
    def rank(self) -> int:
        return self.a.shape[0]

    @property
    def n_bytes(self) -> int:
        return self.a.n_bytes + self.b.n_bytes


@dataclass(frozen=True, slots=True, eq=False)
class LoraRows:
    """Which rows meet which adapters, round by round: the k-th adapter of a row's stack belongs to round k.

    In round k, `rows[k]` lists rows in the order of their slots, `scales[k]` what their adapter is scaled by besides
    its own scale. Tile i of the first `n_tiles[k]` is (slot, first, n): the entries first .. first + n - 1 of the lists
    meet the adapter of that slot, at most `LORA_TILE` of them. No row stands in a round twice.
    """

    n_tiles: Ints  # [MAX_STACK]
    tiles: Ints  # [MAX_STACK, most, 3]
    rows: Ints  # [MAX_STACK, n]
    scales: Floats  # [MAX_STACK, n]

    @staticmethod
    def empty(n: int) -> "LoraRows":
        """Arrays for so many rows, in ordinary memory."""
        n_tiles = np.zeros(MAX_STACK, np.int32)
        tiles = np.zeros((MAX_STACK, n, 3), np.int32)
        return LoraRows(n_tiles, tiles, np.zeros((MAX_STACK, n), np.int32), np.zeros((MAX_STACK, n), np.float32))


class LoraBank(ABC):
    """The adapters that a backend keeps for the linears of one model, by slot. Slot 0 belongs to none.

    `rows` is filled by the host before a step, for the tokens and for the rows whose logits are wanted; `send` makes a
    change of it visible to the steps that are launched afterwards.
    """

    def __init__(self, shapes: Mapping[str, LinearShape], limits: StepLimits):
        self.shapes = shapes
        self.targets: set[str] = set()  # the linears that some adapter changes or has changed
        self.most_rank = 0  # rank of all adapters so far, in whole tiles
        self.n_rounds = MAX_STACK  # rounds of steps that are recorded at present
        self.rows = {Rows.TOKENS: LoraRows.empty(limits.n_tokens), Rows.LOGITS: LoraRows.empty(limits.n_rows)}

    @property
    def note(self) -> str:
        """How linears add adapters at present, for the load log; empty if there is only one way."""
        return ""

    @property
    def plan_key(self) -> tuple[int, ...]:
        """Dependencies of a recorded step besides its size: it is recorded again when this changes."""
        return len(self.targets), self.most_rank

    def grow(self, names: Iterable[str], rank: int) -> None:
        """An adapter of that rank changes these linears; `put` calls it."""
        self.targets.update(names)
        self.most_rank = max(self.most_rank, -(-rank // LORA_TILE) * LORA_TILE)

    def rows_of(self, rows: Rows) -> LoraRows:
        """The adapter rows that belong to a tensor's rows: per logit row, else per token."""
        return self.rows[Rows.LOGITS if rows is Rows.LOGITS else Rows.TOKENS]

    @abstractmethod
    def prepare(self, factors: Mapping[str, LoraFactors]) -> Any:
        """An adapter, by the names of linears, as this backend reads it. Any thread may call this."""

    @abstractmethod
    def put(self, slot: int, prepared: Any) -> None:
        """Let steps that are launched from now on find the adapter in this slot."""

    @abstractmethod
    def clear(self, slot: int) -> None:
        """Release an adapter that no step uses any more."""

    def send(self) -> None:
        """Bring the changed `rows` to the device; nothing to do where it reads host memory."""
        return


class HostLoraBank(LoraBank):
    """Factors as they were given, multiplied on the host: the bank of a backend that has none of its own."""

    def __init__(self, shapes: Mapping[str, LinearShape], limits: StepLimits):
        super().__init__(shapes, limits)
        self._slots: dict[int, Mapping[str, LoraFactors]] = {}

    def prepare(self, factors: Mapping[str, LoraFactors]) -> Mapping[str, LoraFactors]:
        return factors

    def put(self, slot: int, prepared: Mapping[str, LoraFactors]) -> None:
        self._slots[slot] = prepared
        self.grow(prepared, max(factors.rank for factors in prepared.values()))

    def clear(self, slot: int) -> None:
        self._slots.pop(slot, None)

    def additions(self, x: Floats, name: str, rows: LoraRows) -> Iterator[Floats]:
        """Additions of adapters to the rows of a linear of x, round by round.

        Rows without an adapter get -0, which added to a number keeps every bit of it.
        """
        for k in range(self.n_rounds):
            if rows.n_tiles[k]:
                yield self._round(x, name, rows, k)

    def _round(self, x: Floats, name: str, rows: LoraRows, k: int) -> Floats:
        """Sums are taken in f64, so that their rounding decides no comparison."""
        out = np.full((len(x), self.shapes[name].n_rows), -0.0, np.float32)
        for slot, first, n in rows.tiles[k, : rows.n_tiles[k]]:
            if (factors := self._slots.get(slot, {}).get(name)) is None:
                continue
            some = rows.rows[k, first : first + n]
            scales = np.float32(factors.scale) * rows.scales[k, first : first + n, None]
            low = x[some].astype(np.float64) @ factors.a.dense().T.astype(np.float64)
            out[some] = low @ factors.b.dense().T.astype(np.float64) * scales
        return out
