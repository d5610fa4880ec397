"""Steps run through plans, as an engine does."""

import numpy as np

from model_cases import token_ids
from model_runs import Part, Runs
from tahr.backends.api import Plan, StepLimits

IDS = token_ids()
OTHER = list(reversed(IDS))
# A prompt, two prompts, a decoded token beside a chunk, then decoded tokens alone: every change of shape a plan meets.
STEPS: list[list[Part]] = [
    [(0, IDS[:10])],
    [(0, OTHER[:7]), (0, IDS[:12])],
    [(7, OTHER[7:8]), (12, IDS[12:20])],
    [(8, OTHER[8:9]), (20, IDS[20:21])],
    [(9, OTHER[9:10]), (21, IDS[21:22])],
    [(10, OTHER[10:11])],
]


class Replay:
    """Plans by bucket, recorded on the first step that fits and kept: what an engine does."""

    def __init__(self, runs: Runs):
        self.runs = runs
        self.step = runs.backend.step_inputs(runs.limits)
        self.plans: dict[StepLimits, Plan] = {}

    def logits(self, parts: list[Part], bucket: StepLimits) -> np.ndarray:
        self.runs.fill(self.step, parts)
        plan = self.plans.get(bucket) or self.plans.setdefault(bucket, self.record(bucket))
        plan.run()
        return self.runs.backend.read(plan.result)

    def record(self, bucket: StepLimits) -> Plan:
        runs, step = self.runs, self.step.within(bucket)
        return runs.backend.record(lambda: runs.decoder.forward(runs.backend, step, runs.kv), step)
