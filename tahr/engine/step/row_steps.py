"""Steps that compute the rows sequences wait for: a part of the tower at a time, for as many inputs as a step holds."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from tahr.backends.api import Extras, Floats, Ints
from tahr.engine.scheduling.row_memory import RowMemory
from tahr.engine.sequences.prompt_rows import RowSource
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.step.sizes import StepSizes
from tahr.executor.protocol import TOWER, Executor, StepRequest, TowerFacts
from tahr.kv.pages import pages_for

EXTRAS = int(Extras.ROWS | Extras.ROPE | Extras.TARGETS)
Computed = list[tuple[Sequence, Floats]]


class WantedRows(NamedTuple):
    """An input, and where its rows go: to the slots of a content, or to the host for a sequence."""

    source: RowSource
    digest: bytes = b""
    sequence: Sequence | None = None


class RowSteps:
    """Puts rows that the host has, or computes them with a tower, beside the steps of texts."""

    def __init__(self, executor: Executor, rows: RowMemory):
        self.executor = executor
        self.rows = rows
        self._tower = TowerBatch(executor, executor.tower) if executor.tower else None
        self._at_work: list[WantedRows] = []

    @property
    def has_work(self) -> bool:
        return bool(self._at_work or self.rows.wanted or self.rows.for_host)

    def run(self) -> Computed:
        """Run one step; what it computed for the host. Nothing is run that nobody waits for any more."""
        if not any(map(self._is_wanted, self._at_work)):
            self._begin(self._next())
        if not self._at_work:
            return []
        made: list[Floats] | None = []
        if self._tower and not self._at_work[0].source.is_made:
            made = self._tower.run_part([self._targets(each) for each in self._at_work])
        else:
            self._put(self._at_work)
        return [] if made is None else self._hand_on(made)

    def _begin(self, wanted: list[WantedRows]) -> None:
        """Work at these from now on, and let the others go."""
        self._at_work = wanted
        if self._tower:
            self._tower.begin([each.source for each in wanted if not each.source.is_made])

    def _hand_on(self, made: list[Floats]) -> Computed:
        """Declare ready the inputs that were at work; `made` are their rows, if any are for the host."""
        done = self._at_work
        self._begin([])
        for each in done:
            if each.digest:
                self.rows.slots.ready(each.digest)
        return [(each.sequence, rows) for each, rows in zip(done, made, strict=False) if each.sequence]

    def give_up(self) -> list[Sequence]:
        """Stop computing what failed; returns the sequences that wait for it."""
        lost = self._at_work
        self._begin([])
        for_host = [each.sequence for each in lost if each.sequence and not each.sequence.done]
        return self.rows.waiting_for([each.digest for each in lost if each.digest]) + for_host

    def _put(self, contents: Iterable[WantedRows]) -> None:
        for each in contents:
            self.executor.put_rows(self.rows.slots.targets(each.digest), each.source.values)

    def _targets(self, each: WantedRows) -> list[int] | None:
        """The slots of an input's rows; None: they are for the host."""
        return None if each.sequence else self.rows.slots.targets(each.digest)

    def _is_wanted(self, each: WantedRows) -> bool:
        return not each.sequence.done if each.sequence else self.rows.still_wanted(each.digest)

    def _next(self) -> list[WantedRows]:
        """The inputs wanted first, as many as a step holds; or some rows that no tower computes."""
        found: list[WantedRows] = []
        n_left = self._tower.limits.n_tokens if self._tower else 1
        n_seqs = self._tower.limits.n_seqs if self._tower else 1
        for each in self._wanted():
            n_left -= len(each.source.values)
            n_seqs -= each.source.n_windows
            if found and (min(n_left, n_seqs) < 0 or each.source.is_made != found[0].source.is_made):
                break
            found.append(each)
            if each.digest:
                self.rows.wanted.popleft()
        return found

    def _wanted(self) -> Iterator[WantedRows]:
        """Rows that prompts wait for, the first one also first in their queue; then those for the host."""
        wanted = self.rows.wanted
        while wanted:
            digest, source = wanted[0]
            if self.rows.still_wanted(digest):
                yield WantedRows(source, digest)
            else:
                wanted.popleft()
        for seq in self.rows.for_host.values():
            assert seq.wanted.source
            yield WantedRows(seq.wanted.source, sequence=seq)


class TowerBatch:
    """Inputs of a tower that go through its parts together."""

    def __init__(self, executor: Executor, facts: TowerFacts):
        self.limits = facts.limits
        self._executor = executor
        self._facts = facts
        self._inputs = executor.inputs(TOWER)
        self._sizes = StepSizes(facts.buckets, 1)
        self._part = 0
        self._sources: list[RowSource] = []
        self._in_windows = False  # a sequence of the step is a window of an input
        self._n_most = 0  # tokens of the longest of these
        self._n_outputs: list[int] = []  # rows that each input gives

    def begin(self, sources: list[RowSource]) -> None:
        """Take other inputs, or none: their rows go where the first part reads them, with all that parts read."""
        self._part = 0
        self._sources = sources
        self._n_outputs = []
        if not sources:
            return
        step = self._inputs
        at = n_rows = 0
        for source in sources:
            n = len(source.values)
            outputs = np.arange(n) if source.outputs is None else source.outputs
            self._executor.put_rows(range(at, at + n), source.values, TOWER)
            positions = np.arange(n) if source.rope_positions is None else source.rope_positions
            step.rope_positions[:, at : at + n] = positions
            step.logit_rows[n_rows : n_rows + len(outputs)] = outputs + at
            self._n_outputs.append(len(outputs))
            at += n
            n_rows += len(outputs)
        step.row_of[:at] = np.arange(at)
        step.counts[:2] = at, n_rows
        self._divide(in_windows=self._facts.windowed[:1] == (True,))

    def _divide(self, in_windows: bool) -> None:
        """Let each input be a sequence of the step, or each window of one, in pages of its own."""
        lengths: list[int] = []
        for source in self._sources:
            if in_windows and source.windows is not None:
                lengths += source.windows.tolist()
            else:
                lengths.append(len(source.values))
        at = 0
        page = 0
        for i, n in enumerate(lengths):
            page = self._fill(i, n, at, page)
            at += n
        self._inputs.query_start[len(lengths)] = at
        self._inputs.counts[2] = len(lengths)
        self._n_most = max(lengths)
        self._in_windows = in_windows

    def _fill(self, i: int, n: int, at: int, page: int) -> int:
        """Write sequence i, whose rows begin at `at`, in pages from `page` on; the page behind them."""
        step = self._inputs
        size = self._facts.page_size
        places = np.arange(n, dtype=np.int32)
        n_pages = pages_for(n, size)
        step.query_start[i] = at
        step.seq_lens[:, i] = n
        step.positions[at : at + n] = places
        step.page_table[0, i, :n_pages] = np.arange(page, page + n_pages)
        step.slot_mapping[0, at : at + n] = page * size + places
        return page + n_pages

    def _leave_out(self, n_joined: int) -> None:
        """Let the next part read those rows alone of which so many neighbours become one."""
        step = self._inputs
        at = n_left = 0
        for source in self._sources:
            assert source.outputs is not None, "an input of such a tower says what becomes of its rows"
            found = (source.outputs[:, None] + np.arange(n_joined)).reshape(-1)
            step.row_of[n_left : n_left + len(found)] = found + at
            at += len(source.values)
            n_left += len(found)
        step.counts[0] = n_left

    def run_part(self, targets: list[list[int] | None]) -> list[Floats] | None:
        """Run the next part; None unless it was the last.

        That one wrote each input's rows to its slots, if any. Where an input has None in place of slots, the rows of
        all are for the host, and are returned.
        """
        step = self._inputs
        windowed = self._facts.windowed
        if windowed and windowed[self._part] != self._in_windows:
            self._divide(windowed[self._part])
        is_last = self._part == self._facts.n_parts - 1
        if is_last and self._facts.n_joined:
            self._leave_out(self._facts.n_joined)
        written = self._targets(targets) if is_last else step.row_of[: step.n_tokens]
        step.row_target[: len(written)] = written
        counts = (step.n_tokens, step.n_rows, step.n_seqs, self._n_most)
        bucket = self._sizes.choose(self._part, 0, counts, EXTRAS)
        request = StepRequest(0, TOWER, self._part, bucket, wants_rows=is_last and None in targets, extras=EXTRAS)
        rows = self._run(request)
        self._part += 1
        if not is_last:
            return None
        return [] if rows is None else np.split(rows, np.cumsum(self._n_outputs)[:-1])

    def _run(self, request: StepRequest) -> Floats | None:
        self._sizes.ran(request.plan)
        try:
            return self._executor.collect(self._executor.launch(request)).rows
        except BaseException:
            self._sizes.failed(request.plan)
            raise

    def _targets(self, targets: list[list[int] | None]) -> Ints:
        """By row that comes out, the slot it goes to."""
        found: list[Ints] = []
        for source, n, slots in zip(self._sources, self._n_outputs, targets, strict=True):
            each = np.array(slots or [-1] * n, np.int32)
            if source.order is not None:
                each = each[source.order]
            found.append(each)
        return np.concatenate(found)
