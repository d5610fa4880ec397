"""Turns the scheduler's choice into the arrays a plan reads."""

import numpy as np

from tahr.backends.api import StepInputs
from tahr.engine.scheduler import Work
from tahr.kv.pages import Pages, no_pages


class Batch:
    """Writes step inputs. What a row of the page table holds is remembered, so only changes are written."""

    def __init__(self, step: StepInputs, page_size: int):
        self.step = step
        self.page_size = page_size
        self._tables: list[Pages] = [no_pages()] * step.limits.n_seqs
        self._n_written = [0] * step.limits.n_seqs

    def fill(self, work: list[Work]) -> None:
        """Write the inputs of a step."""
        step = self.step
        ids: list[int] = []
        positions: list[int] = []
        starts, lengths = [0], []
        rows: list[int] = []
        for index, (seq, n, _, n_rows, _) in enumerate(work):
            begin, end = seq.computed, seq.computed + n
            ids += seq.tokens[begin:end]
            positions += range(begin, end)
            lengths.append(end)
            starts.append(starts[-1] + n)
            rows += range(starts[-1] - n_rows, starts[-1])
            # A page table only grows, or is replaced by another.
            if seq.pages is not self._tables[index] or len(seq.pages) != self._n_written[index]:
                self._write_pages(index, seq.pages)
        step.ids[: len(ids)] = ids
        step.positions[: len(ids)] = positions
        step.starts[: len(starts)] = starts
        step.lengths[: len(work)] = lengths
        step.rows[: len(rows)] = rows
        step.counts[:] = len(ids), len(rows), len(work)
        self._fill_slots()

    def _write_pages(self, index: int, pages: Pages) -> None:
        self.step.page_table[index, : len(pages)] = pages
        self._tables[index] = pages
        self._n_written[index] = len(pages)

    def _fill_slots(self) -> None:
        """Where each token's keys and values go: its page, and its place there."""
        step, n_seqs = self.step, self.step.n_seqs
        positions = step.positions[: step.n_tokens]
        owner = np.repeat(np.arange(n_seqs), np.diff(step.starts[: n_seqs + 1]))
        places, offsets = np.divmod(positions, self.page_size)
        step.slots[: step.n_tokens] = step.page_table[owner, places] * self.page_size + offsets
