"""Between the scheduler's work and an executor: fills a step's inputs, launches it, samples, and reads its results."""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from time import perf_counter
from typing import NamedTuple

from tahr.backends.api import Floats
from tahr.engine.sampling.sampler import Sampler
from tahr.engine.sampling.sampling_state import Sample
from tahr.engine.scheduling.work import StepWork
from tahr.engine.step.adapter_rows import AdapterRows
from tahr.engine.step.batch import Batch
from tahr.engine.step.frame_columns import FrameColumns
from tahr.engine.step.in_flight import InFlight
from tahr.engine.step.row_columns import Columns, CrossColumns, RowColumns
from tahr.engine.step.sample_plan import SamplePlan
from tahr.engine.step.sizes import StepSizes
from tahr.executor.output import Output
from tahr.executor.protocol import Executor, StepRequest
from tahr.grammar.masks import Forced, GrammarToken
from tahr.kv.row_slots import RowSlots


class StepOutput(NamedTuple):
    """Output of a step."""

    tokens: ListOf[Sample]  # results by the step's sampled sequences: a token each, or the reason for none
    rows: Floats | None  # the wanted rows in the order of the work; None if the host needs none


class Steps:
    """The steps of one model of an executor."""

    def __init__(self, executor: Executor, model: int = 0, rows: RowSlots | None = None, more: Columns | None = None):
        facts = executor.models[model]
        self.executor = executor
        self.model = model
        self.facts = facts
        self.inputs = executor.inputs(model)
        self.sizes = StepSizes(facts.buckets, facts.n_decode_tokens)
        self.sampler = Sampler(executor, facts.n_vocab, is_draft=model > 0)
        crossed = rows is not None and rows.pages is not None
        n_groups = len(self.inputs.page_table) - crossed
        self._batch = Batch(self.inputs, executor.facts.memory.page_size, facts.has_states, n_groups)
        self._adapter_rows: AdapterRows | None = None
        row_columns = (CrossColumns if crossed else RowColumns)(self.inputs, rows) if rows else None
        frame_columns = FrameColumns(self.inputs) if facts.frames.n_codes else None
        self._columns: list[Columns] = [columns for columns in (row_columns, frame_columns, more) if columns]
        self._samples: SamplePlan | None = None
        self._n_requests = 0

    # ---- one step ---------------------------------------------------------------------------------------------

    def prepare(self, work: StepWork, with_adapters: bool = False) -> InFlight:
        """Fill in the inputs of a step, whose sequences may have adapters. The step before must have been launched."""
        began = perf_counter()
        samples = self._samples
        if samples is None or not samples.holds(work):
            samples = self._samples = SamplePlan(work)
        request = self.fill(work, samples.wants_rows, with_adapters)
        lengths = samples.lengths(self._batch.seq_lens)
        return InFlight(work, samples, request, lengths, samples.slots(), began, self.sizes.n_first_runs)

    def fill(
        self, work: StepWork, wants_rows: bool = False, with_adapters: bool = False, output: int | None = None
    ) -> StepRequest:
        """Write the inputs of a step; what to launch then. Its rows are those that its sequences want, unless told."""
        self._batch.fill(work)
        extras = 0
        for columns in self._columns:
            extras |= columns.fill(work)
        n_rounds, sends_rows = self._fill_adapters(work) if with_adapters else (0, False)
        output = work.sequences[0].wanted.output if output is None else output
        inputs = self.inputs
        counts = inputs.n_tokens, inputs.n_rows, inputs.n_seqs, self._batch.n_most
        bucket = self.sizes.choose(output, n_rounds, counts, extras)
        self._n_requests += 1
        return StepRequest(
            self._n_requests,
            self.model,
            output,
            bucket,
            n_rounds,
            sends_rows,
            wants_rows,
            page_copies=work.copies,
            extras=extras,
        )

    def _fill_adapters(self, work: StepWork) -> tuple[int, bool]:
        """The rounds of adapters of a step, and whether its adapter rows are new."""
        port = self.executor.adapters
        if self._adapter_rows is None:
            self._adapter_rows = AdapterRows(port)
        found = self._adapter_rows.fill(work)
        self.sizes.follow(port.plan_key)
        return found

    def launch(self, step: InFlight, take_copies: Callable[[], list[tuple[int, int]]] | None = None) -> None:
        """Begin a step, and to sample from it, unless a grammar must see the tokens of the step before.

        `take_copies` gives the states to copy before it; they are taken when nothing is left that may fail but the
        executor, which copies them first.
        """
        samples = step.samples
        step.waits = bool(samples.constrained) and any(
            seq.ahead.n_ahead > len(seq.ahead.drafts) for seq in samples.constrained
        )
        batch = None if step.waits else self.sampler.prepare(samples.requests, samples.rows)
        copies = take_copies() if take_copies else None
        request = step.request._replace(state_copies=copies) if copies else step.request
        step.handle = self.run(request)  # running empties a CPU's caches: the least possible is done right afterwards
        if batch:
            step.masks = batch
            self.sample(step)

    def run(self, request: StepRequest) -> object:
        """Begin a step whose inputs are filled in."""
        self.sizes.ran(request.plan)
        try:
            return self.executor.launch(request)
        except BaseException:
            self.sizes.failed(request.plan)
            self.failed()
            raise

    def failed(self) -> None:
        """A step that was prepared may not have been launched: its adapter rows may not have been sent."""
        if self._adapter_rows:
            self._adapter_rows.forget()

    def begin_masks(self, step: InFlight, tokens: ListOf[GrammarToken] = ()) -> list[Forced]:
        """Let grammars take the tokens before, and begin the masks of a step that waits; what each token forces."""
        step.masks = self.sampler.batch(step.samples.requests, step.samples.rows)
        return step.masks.begin_masks(self.sampler.filler, tokens)

    def sample(self, step: InFlight) -> None:
        """Begin to sample from a step, when its masks are filled. The next step must not have been launched."""
        assert step.masks
        step.sampled = self.sampler.finish(step.masks, step.lengths, step.slots)
        self.executor.sample(step.handle, step.sampled.rows)
        step.masks = None
        step.waits = False

    def collect(self, step: InFlight) -> StepOutput:
        """Wait for a step, and take its results."""
        if step.waits:
            self.sample(step)
        sampled, rows = self.executor.collect(step.handle)
        assert step.sampled and sampled
        return StepOutput(step.sampled.results(sampled), rows)

    # ---- before steps need them -------------------------------------------------------------------------------

    def warm_next(self) -> bool:
        """Make one of the first runs of a plan that no step has needed yet, if one is prepared; False if none is left.

        Nothing may be in flight.
        """
        if not self.executor.wants_warming():
            return False
        keys = self.sizes.cold(Output.HIDDEN if self.facts.encoding else Output.LOGITS)
        if not keys:
            return False
        steps = [StepRequest(0, self.model, output, bucket) for output, bucket, *_ in keys]
        if found := self.executor.prepare(steps):
            self.executor.warm(found)
            self.sizes.ran_empty(found.plan)
        return True
