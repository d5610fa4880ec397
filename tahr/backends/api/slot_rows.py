"""Ops on row slots, by which models hand rows to each other."""

from dataclasses import replace

import numpy as np

from tahr.backends.api.recording import Recording
from tahr.backends.api.step import StepInputs
from tahr.backends.api.tensors import Linear, Rows, Tensor


class SlotRowOps(Recording):
    """Default bodies compute on the host."""

    def check_rows(self) -> None:
        """Refuse, when a model is loaded, one that reads or writes row slots, where this backend cannot."""
        self.check_host_body(type(self).with_rows is SlotRowOps.with_rows, "rows from another model")

    def take_rows(self, step: StepInputs, width: int, begin: int = 0, meets: Linear | None = None) -> Tensor:
        """Columns begin .. begin + width of the row that `step.row_of` names for each token; -1: zeros.

        Where products run in several types, those of these rows run in that of a linear that they meet.
        """
        zeros = self.tensor(np.zeros((step.n_tokens, width), np.float32))
        return self.with_rows(replace(zeros, rows=Rows.TOKENS), step, begin=begin)

    def with_rows(self, x: Tensor, step: StepInputs, add: bool = False, begin: int = 0) -> Tensor:
        """x, but for tokens with a row: columns begin .. begin + x.width of that in its place, or added to it."""
        assert step.rows
        out = np.array(self.read(x))
        slots = step.row_of[: len(out)]
        found = step.rows.data[slots[slots >= 0], begin : begin + x.width]
        out[slots >= 0] = out[slots >= 0] + found if add else found
        return self.rows_like(x, out)

    def store_rows(self, x: Tensor, step: StepInputs, begin: int = 0) -> None:
        """Every row of x that `step.row_target` names a slot for goes there, to columns from `begin` on."""
        assert step.target_rows
        rows = self.read(x)
        slots = step.row_target[: len(rows)]
        step.target_rows.data[slots[slots >= 0], begin : begin + x.width] = rows[slots >= 0]

    def join_rows(self, x: Tensor, n: int, step: StepInputs) -> Tensor:
        """Every n neighbours among the rows of a step's tokens as one: rows n * i .. n * i + n - 1 become row i.

        The step has as many logit rows.
        """
        width = n * x.width
        joined = self.tensor(np.array(self.read(x)).reshape(-1, width))
        return Tensor(width, Rows.LOGITS, joined.data)
