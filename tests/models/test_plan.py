"""A plan follows its inputs: recorded on one step and replayed on another, it says what running that step says."""

from pathlib import Path

import numpy as np
import pytest

import backends_here
from model_cases import CASES, FAMILY_CASES, make_weights, token_ids
from model_files import write_hf
from model_runs import Part, Runs
from tahr.backends.api import Plan, StateShape, StepLimits
from tahr.models.loader import load, open_model

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
TOLERANCE = 1e-5


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


@pytest.mark.parametrize("name", backends_here.AND_PLAIN)
@pytest.mark.parametrize("case", FAMILY_CASES)
def test_replay_equals_eager(case: str, name: str, tmp_path: Path) -> None:
    backend = backends_here.backend(name)
    loaded = load(open_model([], write_hf(tmp_path, CASES[case], make_weights(CASES[case]))), backend)
    replay, eager = Replay(Runs(loaded, backend, n_seqs=2)), Runs(loaded, backend, n_seqs=2)
    has_states = any(isinstance(shape, StateShape) for shape in loaded.decoder.memory)
    for parts in STEPS:
        wanted = eager.eager(parts)
        counts = [len(ids) for _, ids in parts]
        fitting = [
            b for b in backend.buckets(eager.limits) if b.hold(sum(counts), sum(counts), len(parts), max(counts))
        ]
        for bucket in fitting[:1] if has_states else fitting:  # a step changes states, and must not be run again
            assert np.abs(replay.logits(parts, bucket) - wanted).max() <= TOLERANCE, (parts, bucket)
    assert replay.plans, "no bucket held any step"
