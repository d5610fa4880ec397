"""Launches steps and collects what comes of them: fills the inputs, replays the plan that fits, samples."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tahr.backends.api import Backend, Floats, KVStore, Plan, StepInputs, StepLimits, Tensor
from tahr.engine.batch import Batch
from tahr.engine.sampler import PendingTokens, SampledToken, Sampler
from tahr.engine.sequence import Sequence
from tahr.engine.work import WorkItem
from tahr.errors import TahrError
from tahr.kv.tables import PageCopy
from tahr.models.decoder import Decoder

Forward = Callable[[Backend, StepInputs, KVStore], Tensor]


class StepOutput(NamedTuple):
    """What a step brought."""

    tokens: list[SampledToken | TahrError]  # by the step's `sampled` sequences: a token each, or why there is none
    rows: Floats  # the wanted rows in the order of the work; empty if the host needs none


@dataclass(slots=True)
class InFlight:
    """A launched step; its results are on their way."""

    work: list[WorkItem]
    sampled: list[Sequence]  # the sequences that get a token
    rows: list[int]  # the row of logits each token is sampled from
    parents: list[Sequence]  # the sequences that the others of `sampled` are forked from
    scores: bool  # rows are wanted besides those to sample from
    tokens: PendingTokens
    logits: Floats  # the wanted rows in the order of the work, if it `scores`
    began: float

    def collect(self) -> StepOutput:
        """Wait for the step, and take its results."""
        return StepOutput(self.tokens.collect(), self.logits)


class Runner:
    """Owns an engine's plans: each recorded on first use, replayed for every step that fits its bucket.

    A backend that overlaps steps gets two sets of step inputs, used in turn: one can be filled while a step reads the
    other.
    """

    def __init__(
        self,
        backend: Backend,
        decoder: Decoder,
        kv: KVStore,
        limits: StepLimits,
        n_vocab: int | None = None,
        forward: Forward | None = None,
    ):
        self.backend = backend
        self.decoder = decoder
        self.forward = forward or decoder.forward
        self.kv = kv
        self.n_vocab = n_vocab or decoder.config.n_vocab  # tokens that exist: a model may have more logits
        self.inputs = [backend.step_inputs(limits) for _ in range(2 if backend.overlaps else 1)]
        self.buckets = backend.buckets(limits)
        self.sampler = Sampler(backend, self.n_vocab)
        self._batches = [Batch(step, kv.page_size) for step in self.inputs]
        self._turn = 0  # which inputs the next step is filled into
        self._plans: list[dict[StepLimits, Plan]] = [{} for _ in self.inputs]

    def launch(self, work: list[WorkItem]) -> InFlight:
        """Begin a step."""
        began = perf_counter()
        sampled, rows, parents, scores = sampled_rows(work)
        logits = self.replay(work)
        n_ahead = [seq.n_ahead for seq in sampled] if self.backend.overlaps else None
        tokens = self.sampler.launch([seq.request for seq in sampled if seq.request], logits, rows, n_ahead)
        # The next step may write over the logits, so what the host wants of them is read now.
        wanted = np.array(self.backend.read(logits)) if scores else no_rows()
        return InFlight(work, sampled, rows, parents, scores, tokens, wanted, began)

    def run(self, work: list[WorkItem]) -> NDArray[np.float32]:
        """Run a step at once; the wanted rows in the order of the work."""
        return self.backend.read(self.replay(work))

    def replay(self, work: list[WorkItem]) -> Tensor:
        """Begin to compute the wanted rows of a step; the next one may write over them."""
        self.decoder.files.check()
        if copies := [copy for item in work for copy in item.copies]:
            self._copy_pages(copies)
        self._batches[self._turn].fill(work)
        plan = self.plan_for(self.bucket_for(work), self._turn)
        if self.backend.overlaps:
            self._turn = 1 - self._turn
        plan.run()
        return plan.result

    def _copy_pages(self, copies: list[PageCopy]) -> None:
        for group in {copy.group for copy in copies}:
            pairs = [(copy.source, copy.target) for copy in copies if copy.group == group]
            self.backend.copy_pages(self.kv, pairs, group)

    def bucket_for(self, work: list[WorkItem]) -> StepLimits:
        """The smallest bucket that holds the step."""
        if len(self.buckets) == 1:
            return self.buckets[0]
        step = self.inputs[self._turn]
        counts = step.n_tokens, step.n_rows, len(work), max(item.n_tokens for item in work)
        return next(bucket for bucket in self.buckets if bucket.hold(*counts))

    def plan_for(self, bucket: StepLimits, turn: int = 0) -> Plan:
        """The plan of a bucket on one of the sets of inputs."""
        plan = self._plans[turn].get(bucket)
        if plan is None:
            step = self.inputs[turn].within(bucket)
            plan = self.backend.record(lambda: self.forward(self.backend, step, self.kv), step)
            self._plans[turn][bucket] = plan
        return plan


def sampled_rows(work: list[WorkItem]) -> tuple[list[Sequence], list[int], list[Sequence], bool]:
    """`sampled`, `rows`, `parents` and `scores` of a step. The choices of a request share the row after its prompt."""
    sampled: list[Sequence] = []
    rows: list[int] = []
    parents: list[Sequence] = []
    end = n_sampling = 0
    for seq, _, _, samples, n_rows, _ in work:
        end += n_rows
        if samples:
            sampled.append(seq)
            rows.append(end - 1)
            n_sampling += 1
            if seq.forks and not seq.n_generated:
                forks = [fork for fork in seq.forks if not fork.done]
                sampled += forks
                rows += [end - 1] * len(forks)
                parents.append(seq)
    return sampled, rows, parents, end > n_sampling


def no_rows() -> Floats:
    return np.zeros((0, 0), np.float32)
