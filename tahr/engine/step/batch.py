"""Turns the scheduler's choice into the arrays a plan reads."""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from operator import add
from struct import Struct

import numpy as np

from tahr.backends.api import Ints, StepInputs
from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.sequence import Sequence
from tahr.kv.pages import Pages, no_pages

FEW = 32  # tokens, for which Python's numbers are quicker than arrays


class TableRows:
    """The page tables of one group. What a row holds is remembered, so only changes are written."""

    def __init__(self, group: int, rows: Ints):
        self._group = group
        self._rows = [row.data for row in rows]  # NumPy takes longer to write to a row, which need not follow the last
        self._seen: list[Pages] = [no_pages()] * len(rows)
        self._n_written = [0] * len(rows)

    def write(self, sequences: ListOf[Sequence]) -> None:
        """Let row i be the table of sequence i."""
        seen = self._seen
        n_written = self._n_written
        group = self._group
        for index, seq in enumerate(sequences):
            pages = seq.memory.tables[group].pages
            if pages is not seen[index] or len(pages) != n_written[index]:
                self._rows[index][: len(pages)] = pages
                seen[index] = pages
                n_written[index] = len(pages)


class Batch:
    """Writes step inputs. What depends only on how many tokens and rows each sequence has is kept while that is so."""

    def __init__(self, step: StepInputs, page_size: int, has_states: bool = False, n_groups: int | None = None):
        self.step = step
        self.page_size = page_size
        self._has_states = has_states
        self._page_table = step.page_table[:n_groups]  # without groups that look at inputs
        self._slot_mapping = step.slot_mapping[:n_groups]
        self._tables = [TableRows(group, rows) for group, rows in enumerate(self._page_table)]
        self._ids = step.ids.data
        self._positions = step.positions.data
        self._seq_lens = [lengths.data for lengths in step.seq_lens[:n_groups]]
        self._slots = [slots.data for slots in self._slot_mapping]
        self.seq_lens: list[int] = []  # the step's sequence lengths
        self.n_most = 0  # the most tokens that one sequence has in the step
        self._n = 0  # tokens of the last step
        self._counts: tuple[ListOf[int], ListOf[int]] = ((), ())  # tokens and rows of each sequence of the last step
        self._owners: Ints = np.zeros(0, np.int32)  # sequence of each token
        self._offsets: Ints = np.zeros(0, np.int32)  # place of each token in its sequence
        self._write_tokens = self._write_lengths = writer_of(0)  # write a number for each token and each sequence

    def fill(self, work: StepWork) -> None:
        """Write the inputs of a step."""
        sequences = work.sequences
        begins = work.begins
        counts = work.n_tokens
        row_counts = work.n_rows
        for table in self._tables:
            table.write(sequences)
        if (counts, row_counts) != self._counts:
            self._fill_counts(counts, row_counts)
        if self._has_states:
            self.step.state_slots[: len(sequences)] = [seq.memory.slot for seq in sequences]
        self.seq_lens = list(map(add, begins, counts))
        for lengths in self._seq_lens:
            self._write_lengths(lengths, 0, *self.seq_lens)
        self._write_tokens(self._ids, 0, *work.ids)
        if self._n <= FEW:
            self._fill_few(sequences, begins, counts)
        else:
            self._fill_many(np.array(begins, np.int32))

    def _fill_counts(self, counts: ListOf[int], row_counts: ListOf[int]) -> None:
        """Where each sequence begins, and which rows are wanted."""
        step = self.step
        n_tokens = np.array(counts, np.int32)
        n_rows = np.array(row_counts, np.int32)
        ends = n_tokens.cumsum()
        step.query_start[1 : len(counts) + 1] = ends
        rows = spans(ends - n_rows, n_rows)
        step.logit_rows[: len(rows)] = rows
        step.counts[:] = ends[-1], len(rows), len(counts)
        self._n = int(ends[-1])
        self.n_most = max(counts)
        self._owners = np.repeat(np.arange(len(counts)), n_tokens)
        self._offsets = spans(np.zeros_like(n_tokens), n_tokens)
        self._write_tokens = writer_of(self._n)
        self._write_lengths = writer_of(len(counts))
        self._counts = counts, row_counts

    def _fill_many(self, begins: Ints) -> None:
        """Positions and slots."""
        step = self.step
        owners = self._owners
        n = self._n
        positions = begins if n == len(begins) else begins[owners] + self._offsets
        step.positions[:n] = positions
        places, offsets = np.divmod(positions, self.page_size)
        self._slot_mapping[:, :n] = self._page_table[:, owners, places] * self.page_size + offsets

    def _fill_few(self, sequences: ListOf[Sequence], begins: ListOf[int], counts: ListOf[int]) -> None:
        """Fill in plain Python: right after a step NumPy's code is out of the caches, and costs more than this."""
        size = self.page_size
        write = self._write_tokens
        if len(begins) < self._n:
            sequences = [seq for seq, n in zip(sequences, counts, strict=True) for _ in range(n)]
            begins = [begin + i for begin, n in zip(begins, counts, strict=True) for i in range(n)]
        write(self._positions, 0, *begins)
        for group, slots in enumerate(self._slots):
            pairs = zip(sequences, begins, strict=True)
            write(slots, 0, *[seq.memory.tables[group].pages[at // size] * size + at % size for seq, at in pairs])


def writer_of(n: int) -> Callable[..., None]:
    """Writes n numbers into memory, in half the time NumPy takes for a list."""
    return Struct(f"{n}i").pack_into


def spans(begins: Ints, counts: Ints) -> Ints:
    """counts[0] numbers from begins[0] on, then counts[1] from begins[1] on, and so on."""
    ends = counts.cumsum()
    numbers: Ints = np.arange(ends[-1]) - (ends - counts - begins).repeat(counts)
    return numbers
