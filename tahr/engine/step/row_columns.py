"""Writes which rows the tokens of a step read in place of embeddings, and the positions that rope turns them by; or
the pages of the input that they look at."""

from itertools import accumulate
from typing import Protocol

from tahr.backends.api import Extras, StepInputs
from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.prompt_rows import NO_ROWS, PromptRows
from tahr.kv.row_slots import RowSlots

ROWS = int(Extras.ROWS)
ROPE = int(Extras.ROPE)


class Columns(Protocol):
    """Arrays of `Extras` among the inputs of a step."""

    def fill(self, work: StepWork) -> int:
        """Write them for a step, whose other inputs are written already; some of `Extras`."""


class CrossColumns:
    """The page table of the group whose layers look at inputs, the last one."""

    def __init__(self, step: StepInputs, slots: RowSlots):
        assert slots.pages
        self._slots = slots
        self._pages = slots.pages
        self._table = step.page_table[-1]
        self._seen = [-1] * len(self._table)
        step.seq_lens[-1] = self._pages.n_rows

    def fill(self, work: StepWork) -> int:
        """Let row i name the pages of what sequence i looks at; only changes are written."""
        for i, seq in enumerate(work.sequences):
            (span,) = seq.rows.spans
            (slot,) = self._slots.slots(span.digest)
            if slot != self._seen[i]:
                self._table[i, : self._pages.n_pages] = self._pages.of(slot)
                self._seen[i] = slot
        return 0


class RowColumns:
    """The arrays of `Extras` of one model's inputs, filled for one step after the other."""

    def __init__(self, step: StepInputs, slots: RowSlots):
        self._step = step
        self._slots = slots

    def fill(self, work: StepWork) -> int:
        """Write what a step reads besides its other inputs, which are written already; some of `Extras`."""
        sequences = work.sequences
        items = [i for i, seq in enumerate(sequences) if seq.rows is not NO_ROWS]
        if not items:
            return 0
        at = [0, *accumulate(work.n_tokens)]
        turned = any(sequences[i].rows.rope_positions is not None for i in items)
        self._step.row_of[: at[-1]] = -1
        if turned:
            self._step.rope_positions[:, : at[-1]] = self._step.positions[: at[-1]]
        extras = ROPE if turned else 0
        for i in items:
            rows = sequences[i].rows
            begin = work.begins[i]
            extras |= self._fill_slots(rows, begin, begin + work.n_tokens[i], at[i])
            if rows.rope_positions is not None:
                self._turn(rows, begin, begin + work.n_tokens[i], at[i])
        return extras

    def _fill_slots(self, rows: PromptRows, begin: int, end: int, at: int) -> int:
        """Name the rows of a sequence whose tokens begin .. end stand in the step from place `at` on."""
        extras = 0
        for span in rows.within(begin, end):
            first = max(begin, span.begin)
            last = min(end, span.end)
            row = span.first - span.begin
            slots = self._slots.slots(span.digest)[first + row : last + row]
            self._step.row_of[at + first - begin : at + last - begin] = slots
            extras = ROWS
        return extras

    def _turn(self, rows: PromptRows, begin: int, end: int, at: int) -> None:
        """Positions of a prompt are given; those behind it go on from the highest."""
        positions = rows.rope_positions
        assert positions is not None
        n_given = min(end, positions.shape[1]) - begin
        there = self._step.rope_positions[:, at : at + end - begin]
        there += rows.rope_offset
        if n_given > 0:
            there[:, :n_given] = positions[:, begin : begin + n_given]
