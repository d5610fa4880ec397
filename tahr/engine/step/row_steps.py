"""Steps that compute the rows sequences wait for: a part of the tower at a time, for as many inputs as a step holds."""

from collections.abc import Iterable

import numpy as np

from tahr.backends.api import Extras, Ints
from tahr.engine.scheduling.row_memory import RowMemory
from tahr.engine.sequences.prompt_rows import RowSource
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.step.sizes import StepSizes
from tahr.executor.protocol import TOWER, Executor, StepRequest, TowerFacts
from tahr.kv.pages import pages_for

EXTRAS = int(Extras.ROWS | Extras.ROPE | Extras.TARGETS)
Content = tuple[bytes, RowSource]


class RowSteps:
    """Puts rows that the host has, or computes them with a tower, beside the steps of texts."""

    def __init__(self, executor: Executor, rows: RowMemory):
        self.executor = executor
        self.rows = rows
        self._tower = TowerBatch(executor, executor.tower) if executor.tower else None
        self._at_work: list[Content] = []

    @property
    def has_work(self) -> bool:
        return bool(self._at_work or self.rows.wanted)

    def run(self) -> None:
        """Run one step; nothing happens if nobody waits any more for what was wanted."""
        if not self._at_work:
            self._at_work = self._next()
            if self._tower and self._at_work:
                self._tower.begin([source for _, source in self._at_work])
        if not self._at_work:
            return
        if self._tower is None:
            self._put(self._at_work)
        elif not self._tower.run_part([self.rows.slots.targets(digest) for digest, _ in self._at_work]):
            return
        for digest, _ in self._at_work:
            self.rows.slots.ready(digest)
        self._at_work = []

    def give_up(self) -> list[Sequence]:
        """Stop computing what failed; returns the sequences that wait for it."""
        lost = [digest for digest, _ in self._at_work]
        self._at_work = []
        return self.rows.waiting_for(lost)

    def _put(self, contents: Iterable[Content]) -> None:
        for digest, source in contents:
            self.executor.put_rows(self.rows.slots.targets(digest), source.values)

    def _next(self) -> list[Content]:
        """The contents wanted first, as many as a step holds."""
        found: list[Content] = []
        n_left = self._tower.limits.n_tokens if self._tower else 1
        n_seqs = self._tower.limits.n_seqs if self._tower else 1
        wanted = self.rows.wanted
        while wanted and len(found) < n_seqs:
            digest, source = wanted[0]
            if self.rows.still_wanted(digest):
                n_left -= len(source.values)
                if found and n_left < 0:
                    break
                found.append((digest, source))
            wanted.popleft()
        return found


class TowerBatch:
    """Inputs of a tower that go through its parts together."""

    def __init__(self, executor: Executor, facts: TowerFacts):
        self.limits = facts.limits
        self._executor = executor
        self._facts = facts
        self._inputs = executor.inputs(TOWER)
        self._sizes = StepSizes(facts.buckets, 1)
        self._part = 0
        self._n_most = 0  # tokens of the longest input
        self._n_outputs: list[int] = []  # rows that each input gives

    def begin(self, sources: list[RowSource]) -> None:
        """Take other inputs: put their rows where the first part reads them, and fill in what all parts read."""
        self._part = 0
        self._n_outputs = []
        self._n_most = 0
        at = page = n_rows = 0
        for i, source in enumerate(sources):
            n = len(source.values)
            outputs = np.arange(n) if source.outputs is None else source.outputs
            self._executor.put_rows(range(at, at + n), source.values, TOWER)
            self._fill(i, source, at, page)
            self._inputs.logit_rows[n_rows : n_rows + len(outputs)] = outputs + at
            self._n_outputs.append(len(outputs))
            self._n_most = max(self._n_most, n)
            at += n
            n_rows += len(outputs)
            page += pages_for(n, self._facts.page_size)
        self._inputs.query_start[len(sources)] = at
        self._inputs.row_of[:at] = np.arange(at)
        self._inputs.counts[:] = at, n_rows, len(sources)

    def _fill(self, i: int, source: RowSource, at: int, page: int) -> None:
        """Write input i, whose rows begin at `at`, in pages of its own from `page` on."""
        step = self._inputs
        n = len(source.values)
        size = self._facts.page_size
        places = np.arange(n, dtype=np.int32)
        n_pages = pages_for(n, size)
        step.query_start[i] = at
        step.seq_lens[:, i] = n
        step.positions[at : at + n] = places
        step.rope_positions[:, at : at + n] = places if source.rope_positions is None else source.rope_positions
        step.page_table[0, i, :n_pages] = np.arange(page, page + n_pages)
        step.slot_mapping[0, at : at + n] = page * size + places

    def run_part(self, targets: list[list[int]]) -> bool:
        """Run the next part; whether it was the last, which wrote each input's rows to its slots, if any."""
        step = self._inputs
        is_last = self._part == self._facts.n_parts - 1
        written = self._targets(targets) if is_last else step.row_of[: step.n_tokens]
        step.row_target[: len(written)] = written
        counts = (step.n_tokens, step.n_rows, step.n_seqs, self._n_most)
        bucket = self._sizes.choose(self._part, 0, counts, EXTRAS)
        request = StepRequest(0, TOWER, self._part, bucket, extras=EXTRAS)
        self._sizes.ran(request.plan)
        try:
            self._executor.collect(self._executor.launch(request))
        except BaseException:
            self._sizes.failed(request.plan)
            raise
        self._part += 1
        return is_last

    def _targets(self, targets: list[list[int]]) -> Ints:
        """By row that comes out, the slot it goes to."""
        slots = [slot for n, each in zip(self._n_outputs, targets, strict=True) for slot in each or [-1] * n]
        return np.array(slots, np.int32)
