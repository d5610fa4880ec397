"""Turns the scheduler's choice into the arrays a plan reads."""

from collections.abc import Sequence as ListOf

import numpy as np

from tahr.backends.api import Ints, StepInputs
from tahr.engine.scheduler import Work
from tahr.engine.sequence import Sequence
from tahr.kv.pages import Pages, no_pages

FEW = 32  # sequences, for which plain numbers are quicker than arrays


class TableRows:
    """The page tables of one group. What a row holds is remembered, so only changes are written."""

    def __init__(self, group: int, rows: Ints):
        self._group = group
        self._rows = rows
        self._seen: list[Pages] = [no_pages()] * len(rows)
        self._n_written = [0] * len(rows)

    def write(self, sequences: ListOf[Sequence]) -> None:
        """Let row i be the table of sequence i."""
        seen, n_written, group = self._seen, self._n_written, self._group
        for index, seq in enumerate(sequences):
            pages = seq.tables[group].pages
            if pages is not seen[index] or len(pages) != n_written[index]:
                self._rows[index, : len(pages)] = pages
                seen[index], n_written[index] = pages, len(pages)


class Batch:
    """Writes step inputs."""

    def __init__(self, step: StepInputs, page_size: int):
        self.step = step
        self.page_size = page_size
        self._tables = [TableRows(group, rows) for group, rows in enumerate(step.page_table)]
        self._numbers = np.arange(max(len(step.query_start), len(step.logit_rows)), dtype=np.int32)
        self._n_writing = 0  # if the last step was one in which everybody wrote: how many

    def fill(self, work: list[Work]) -> None:
        """Write the inputs of a step."""
        sequences, counts, _, row_counts, _ = zip(*work, strict=True)
        for table in self._tables:
            table.write(sequences)
        if sum(counts) == sum(row_counts) == len(work):
            self._fill_writing(sequences)
        else:
            self._fill_any(sequences, counts, row_counts)

    def _fill_writing(self, sequences: ListOf[Sequence]) -> None:
        """A step in which every sequence has one token and wants its logits: what most steps are."""
        step, n = self.step, len(sequences)
        step.positions[:n] = [seq.computed for seq in sequences]
        step.ids[:n] = [seq.tokens[seq.computed] for seq in sequences]
        if n <= FEW:
            self._reckon_few(sequences)
        else:
            self._reckon(n)
        if n != self._n_writing:  # where each begins, and which rows are wanted, changes only with their number
            step.query_start[: n + 1] = self._numbers[: n + 1]
            step.logit_rows[:n] = self._numbers[:n]
            step.counts[:] = n
            self._n_writing = n

    def _reckon(self, n: int) -> None:
        """Lengths and slots of the first n tokens, by their positions."""
        step, positions = self.step, self.step.positions[:n]
        np.add(positions, 1, out=step.seq_lens[:n])
        places, offsets = np.divmod(positions, self.page_size)
        step.slot_mapping[:, :n] = step.page_table[:, self._numbers[:n], places] * self.page_size + offsets

    def _reckon_few(self, sequences: ListOf[Sequence]) -> None:
        """The same by hand: right after a step NumPy's own code is far from the core, and costs more than they do."""
        step, n, size = self.step, len(sequences), self.page_size
        step.seq_lens[:n] = [seq.computed + 1 for seq in sequences]
        for group, slots in enumerate(step.slot_mapping):
            pages = [seq.tables[group].pages[seq.computed // size] for seq in sequences]
            slots[:n] = [page * size + seq.computed % size for page, seq in zip(pages, sequences, strict=True)]

    def _fill_any(self, sequences: ListOf[Sequence], counts: ListOf[int], row_counts: ListOf[int]) -> None:
        ids: list[int] = []
        for seq, n in zip(sequences, counts, strict=True):
            ids += seq.tokens[seq.computed : seq.computed + n]
        begins = np.array([seq.computed for seq in sequences], np.int32)
        n_tokens, n_rows = np.array(counts, np.int32), np.array(row_counts, np.int32)
        self._fill_tokens(ids, begins, n_tokens)
        rows = spans(np.cumsum(n_tokens) - n_rows, n_rows)
        self.step.logit_rows[: len(rows)] = rows
        self.step.counts[:] = len(ids), len(rows), len(sequences)
        self._n_writing = 0

    def _fill_tokens(self, ids: list[int], begins: Ints, n_tokens: Ints) -> None:
        """What each token is, where it stands in its text, and where its keys and values go."""
        step, n, n_seqs = self.step, len(ids), len(begins)
        positions = spans(begins, n_tokens)
        owner = np.repeat(np.arange(n_seqs), n_tokens)
        places, offsets = np.divmod(positions, self.page_size)
        step.ids[:n] = ids
        step.positions[:n] = positions
        step.slot_mapping[:, :n] = step.page_table[:, owner, places] * self.page_size + offsets
        step.query_start[1 : n_seqs + 1] = np.cumsum(n_tokens)
        step.seq_lens[:n_seqs] = begins + n_tokens


def spans(begins: Ints, counts: Ints) -> Ints:
    """counts[0] numbers from begins[0] on, then counts[1] from begins[1] on, and so on."""
    ends = np.cumsum(counts)
    numbers: Ints = np.arange(ends[-1]) - np.repeat(ends - counts - begins, counts)
    return numbers
