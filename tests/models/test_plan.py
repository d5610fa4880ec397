"""A plan follows its inputs: recorded on one step and replayed on another, it says what running that step says."""

from pathlib import Path

import numpy as np
import pytest

import backends_here
from model_cases import CASES, FAMILY_CASES, make_weights
from model_files import write_hf
from model_runs import Runs
from replaying import STEPS, Replay
from tahr.backends.api import StateShape
from tahr.models.loader import open_model

TOLERANCE = 1e-5


@pytest.mark.parametrize("name", backends_here.AND_PLAIN)
@pytest.mark.parametrize("case", FAMILY_CASES)
def test_replay_equals_eager(case: str, name: str, tmp_path: Path) -> None:
    backend = backends_here.backend(name)
    opened = open_model([], write_hf(tmp_path, CASES[case], make_weights(CASES[case])))
    loaded = backends_here.loaded_or_refused(case, opened, name)
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
