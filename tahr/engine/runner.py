"""Runs a step: fills the inputs, replays the plan, reads the logits."""

import numpy as np
from numpy.typing import NDArray

from tahr.backends.api import Backend, KVStore, StepLimits
from tahr.engine.batch import fill
from tahr.engine.scheduler import Work
from tahr.models.decoder import Decoder


class Runner:
    """Owns the one plan of an engine: recorded once, replayed for every step that fits its limits."""

    def __init__(self, backend: Backend, decoder: Decoder, kv: KVStore, limits: StepLimits):
        self.backend = backend
        self.kv = kv
        self.step = backend.step_inputs(limits)
        self.plan = backend.record(lambda: decoder.forward(backend, self.step, kv))

    def run(self, work: list[Work]) -> list[tuple[Work, NDArray[np.float32]]]:
        """The logits row of each item that is ready to pick a token."""
        picking = fill(self.step, work, self.kv.page_size)
        self.plan.run()
        return list(zip(picking, self.backend.read(self.plan.result), strict=True))
