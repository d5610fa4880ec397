"""A row of logits that can be edited without being copied."""

from collections.abc import Sequence as ListOf
from typing import TypeAlias

import numpy as np

from tahr.backends.row_sampler import RowEdits
from tahr.engine.sampling.rows import Floats, Ints

Row: TypeAlias = "Floats | SparseLogits"  # what an edit changes


class SparseLogits:
    """Looks like a row to an edit: `row[ids]`, `row[ids] = values`, `row.fill(value)`. Keeps only what was changed.

    One overlay serves row after row; `begin` starts each.
    """

    def __init__(self, n_vocab: int):
        self._now = np.zeros(n_vocab, np.float32)  # the value of a token, if it was written in this turn
        self._written = np.zeros(n_vocab, np.int64)  # the turn in which
        self._turn = 0
        self._row: Floats | None = None
        self._ids: list[Ints] = []

    def __len__(self) -> int:
        return len(self._now)

    def begin(self, row: Floats) -> None:
        """Edit another row."""
        self._turn += 1
        self._row, self._ids = row, []

    def __getitem__(self, ids: Ints) -> Floats:
        before = np.float32(-np.inf) if self._row is None else self._row[ids]
        return np.where(self._written[ids] == self._turn, self._now[ids], before)

    def __setitem__(self, ids: Ints, values: Floats | float) -> None:
        self._now[ids] = values
        self._written[ids] = self._turn
        self._ids.append(ids)

    def fill(self, value: float) -> None:
        """Forget the row: all of it is -inf."""
        assert value == -np.inf
        self._turn += 1
        self._row, self._ids = None, []

    def edits(self) -> tuple[Ints, Floats, bool]:
        """What was changed: ids (some of them perhaps twice), their values, and whether the rest is -inf."""
        ids = self._ids[0] if len(self._ids) == 1 else np.concatenate([np.zeros(0, np.int64), *self._ids])
        return ids, self._now[ids], self._row is None


def row_edits(changes: ListOf[tuple[Ints, Floats, bool]]) -> RowEdits:
    """The changes of all rows, one after the other."""
    ids, values, blank = zip(*changes, strict=True)
    begins = np.zeros(len(changes) + 1, np.int64)
    np.cumsum([len(each) for each in ids], out=begins[1:])
    return RowEdits(begins, np.concatenate(ids).astype(np.int32), np.concatenate(values), np.array(blank))
