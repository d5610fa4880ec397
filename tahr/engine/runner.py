"""Runs a step: fills the inputs, replays the plan that fits, reads the logits."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tahr.backends.api import Backend, Doubles, Ints, KVStore, Plan, StepInputs, StepLimits, Tensor
from tahr.engine.batch import Batch
from tahr.engine.scheduler import Work
from tahr.kv.tables import PageCopy
from tahr.models.decoder import Decoder

Forward = Callable[[Backend, StepInputs, KVStore], Tensor]


class Runner:
    """Owns an engine's plans: each recorded on first use, replayed for every step that fits its bucket."""

    def __init__(
        self, backend: Backend, decoder: Decoder, kv: KVStore, limits: StepLimits, forward: Forward | None = None
    ):
        self.backend = backend
        self.decoder = decoder
        self.forward = forward or decoder.forward
        self.kv = kv
        self.step = backend.step_inputs(limits)
        self.batch = Batch(self.step, kv.page_size)
        self.buckets = backend.buckets(limits)
        self._plans: dict[StepLimits, Plan] = {}

    def run(self, work: list[Work]) -> NDArray[np.float32]:
        """The wanted rows of logits, in the order of the work."""
        return self.backend.read(self._replay(work))

    def draw(self, work: list[Work], n_vocab: int, temperatures: Doubles, chances: Doubles) -> Ints:
        """Tokens in place of the wanted rows, where the backend draws them: see `Backend.draw`."""
        return self.backend.draw(self._replay(work), n_vocab, temperatures, chances)

    def _replay(self, work: list[Work]) -> Tensor:
        if copies := [copy for item in work for copy in item.copies]:
            self._copy_pages(copies)
        self.batch.fill(work)
        plan = self.plan_for(self.bucket_for(work))
        plan.run()
        return plan.result

    def _copy_pages(self, copies: list[PageCopy]) -> None:
        for group in {copy.group for copy in copies}:
            pairs = [(copy.source, copy.target) for copy in copies if copy.group == group]
            self.backend.copy_pages(self.kv, pairs, group)

    def bucket_for(self, work: list[Work]) -> StepLimits:
        """The smallest bucket that holds the step."""
        if len(self.buckets) == 1:
            return self.buckets[0]
        counts = self.step.n_tokens, self.step.n_rows, len(work), max(item.n_tokens for item in work)
        return next(bucket for bucket in self.buckets if bucket.hold(*counts))

    def plan_for(self, bucket: StepLimits) -> Plan:
        """The plan of a bucket."""
        if bucket not in self._plans:
            step = self.step.within(bucket)
            self._plans[bucket] = self.backend.record(lambda: self.forward(self.backend, step, self.kv))
        return self._plans[bucket]
