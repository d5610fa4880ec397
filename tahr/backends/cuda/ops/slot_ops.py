"""Row slots on a CUDA device, and the ops that read and write them."""

from collections.abc import Sequence

import numpy as np
import torch

from tahr.backends.api import Floats, Linear, Rows, RowStore, StepInputs, Tensor, Weight
from tahr.backends.cuda.kernels.common import rows
from tahr.backends.cuda.ops.device_rows import like, made
from tahr.backends.cuda.ops.device_rows import values as rows_of
from tahr.backends.cuda.ops.step_ops import StepOps
from tahr.backends.cuda.ops.vectors import SHORT

NARROW = torch.bfloat16  # lets the matrices that rows meet say what products run in: see `wider`


class SlotOps(StepOps):
    """The part of the backend that knows row slots."""

    def row_store(self, n_slots: int, width: int) -> RowStore:
        return RowStore(n_slots, width, torch.zeros((n_slots, width), dtype=torch.float32, device=self.device))

    def write_rows(self, buffer: RowStore, slots: Sequence[int], rows: Floats) -> None:
        there = torch.from_numpy(np.require(rows, np.float32, ["C", "W"])).to(self.device)
        places = slice(slots.start, slots.stop) if isinstance(slots, range) and slots.step == 1 else list(slots)
        buffer.data[places, : rows.shape[1]] = there

    def read_rows(self, buffer: RowStore, slots: Sequence[int]) -> Floats:
        found: Floats = buffer.data[list(slots)].cpu().numpy()
        return found

    def take_rows(self, step: StepInputs, width: int, begin: int = 0, meets: Linear | None = None) -> Tensor:
        found, has_row = self._read_slots(step, self._n_tokens(step), begin, width)
        math = meets.weight.data.dtype if meets else NARROW
        return made(torch.where(has_row, found, 0), Rows.TOKENS, math)

    def with_rows(self, x: Tensor, step: StepInputs, add: bool = False, begin: int = 0) -> Tensor:
        wide = rows_of(x).float()
        found, has_row = self._read_slots(step, len(wide), begin, x.width)
        return like(x, torch.where(has_row, wide + found if add else found, wide))

    def join_rows(self, x: Tensor, n: int, step: StepInputs) -> Tensor:
        whole = len(rows_of(x)) // n * n  # a padded step need not be made of whole squares
        return made(rows_of(x)[:whole].contiguous().view(-1, n * x.width), Rows.LOGITS, x.data.math)

    def store_rows(self, x: Tensor, step: StepInputs, begin: int = 0) -> None:
        """A kernel does it: where kernels are compiled before a step, its ops must leave no trace."""
        buffer = step.target_rows
        inputs = self.context.enter(step)
        assert buffer
        there = buffer.data[:, begin : begin + x.width]
        rows.store(rows_of(x), there, inputs.extras["row_target"], inputs.counts, 1 if x.rows is Rows.LOGITS else 0)

    def tower_kv_dtype(self, weight: Weight) -> str:
        return SHORT[weight.data.dtype]

    def _read_slots(
        self,
        step: StepInputs,
        n: int,
        begin: int,
        width: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Columns of the rows that n tokens name, and which of these there are. What padding names means nothing."""
        buffer = step.rows
        assert buffer
        slots = self.context.enter(step).extras["row_of"][:n].long()
        found = buffer.data[:, begin : begin + width].index_select(0, slots.clamp(0, buffer.n_slots - 1))
        return found, (slots >= 0)[:, None]
