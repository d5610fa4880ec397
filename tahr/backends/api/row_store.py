"""Rows that are no embeddings: computed by another model, or put there by the host, and read by steps."""

from dataclasses import dataclass
from enum import IntFlag
from typing import Any


class Extras(IntFlag):
    """Inputs and outputs of a step besides tokens and pages. A plan is recorded for just some of them."""

    ROWS = 1  # row slots, in place of embeddings or besides them: `StepInputs.row_of`
    ROPE = 2  # other positions for rope than those in the text: `StepInputs.rope_positions`
    TARGETS = 4  # row slots that rows of the step are written to: `StepInputs.row_target`


@dataclass(frozen=True, slots=True)
class RowStore:
    """Row slots on a device: f32 rows of `width` numbers, which outlive steps.

    A row may hold several sets of numbers side by side, each added to another layer's rows: ops name the column where
    theirs begin.
    """

    n_slots: int
    width: int
    data: Any
