"""Runs a step: fills the inputs, replays the plan that fits, reads the logits."""

import numpy as np
from numpy.typing import NDArray

from tahr.backends.api import Backend, KVStore, Plan, StepLimits
from tahr.engine.batch import fill
from tahr.engine.scheduler import Work
from tahr.models.decoder import Decoder


class Runner:
    """Owns an engine's plans: each recorded on first use, replayed for every step that fits its bucket."""

    def __init__(self, backend: Backend, decoder: Decoder, kv: KVStore, limits: StepLimits):
        self.backend = backend
        self.decoder = decoder
        self.kv = kv
        self.step = backend.step_inputs(limits)
        self.buckets = backend.buckets(limits)
        self._plans: dict[StepLimits, Plan] = {}

    def run(self, work: list[Work]) -> list[tuple[Work, NDArray[np.float32]]]:
        """The logits row of each item that is ready to pick a token."""
        picking = fill(self.step, work, self.kv.page_size)
        plan = self.plan_for(self.bucket_for(work, len(picking)))
        plan.run()
        return list(zip(picking, self.backend.read(plan.result), strict=True))

    def bucket_for(self, work: list[Work], n_rows: int) -> StepLimits:
        counts = self.step.n_tokens, n_rows, len(work), max(item.n_tokens for item in work)
        return next(bucket for bucket in self.buckets if bucket.hold(*counts))

    def plan_for(self, bucket: StepLimits) -> Plan:
        if bucket not in self._plans:
            step = self.step.within(bucket)
            self._plans[bucket] = self.backend.record(lambda: self.decoder.forward(self.backend, step, self.kv))
        return self._plans[bucket]
