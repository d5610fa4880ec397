"""TAHR_PROFILE on CUDA: ops are timed in steps that run op by op and in captured ones, and nothing else changes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import backends_here
from engines import greedy, run, submit
from model_runs import Runs
from tahr.backends import open_backend
from tahr.backends.api import Backend, StepInputs, StepLimits
from tahr.backends.cuda.layouts.presence import interprets
from tahr.backends.host import profile as profiling
from tahr.config import EngineConfig
from tahr.loading.builder import build_engine
from tahr.models.loader.load import load, open_model

pytestmark = pytest.mark.skipif("cuda" not in backends_here.NAMES, reason="no GPU, or torch and Triton are missing")

N_RUNS = 5  # the first runs op by op, the second captures, the others replay


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> Iterator[profiling.Profile]:
    from tahr.backends.cuda import profile as cuda_profile

    made = profiling.Profile()
    monkeypatch.setattr(cuda_profile, "profile_of_process", lambda: made)
    yield made


def rows_of_runs(backend: Backend, stories: Path, n_tokens: list[int]) -> list[np.ndarray]:
    """Logits of a recorded step that runs N_RUNS times, with other tokens each time."""
    runs = Runs(load(open_model([stories]), backend), backend)
    limits = StepLimits(4, 1, 4, runs.n_pages_per_seq)
    step: StepInputs = backend.step_inputs(limits)
    plan = backend.record(lambda: runs.decoder.forward(backend, step, runs.kv), step)
    found = []
    for i, n in enumerate(n_tokens):
        runs.fill(step, [(0, [1, 5 + i, 9, 300][:n])])
        plan.run()
        found.append(np.array(backend.read(plan.result)))
    return found


def test_a_timed_model_gives_the_same_numbers(
    stories: Path, profile: profiling.Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [4, 4, 4, 1, 1][:N_RUNS]
    monkeypatch.delenv("TAHR_PROFILE", raising=False)
    plain = rows_of_runs(open_backend("cuda"), stories, lengths)
    monkeypatch.setenv("TAHR_PROFILE", "1")
    timed = rows_of_runs(open_backend("cuda"), stories, lengths)
    assert all((a == b).all() for a, b in zip(plain, timed, strict=True))
    head, *rest = profile.report().splitlines()
    words = head.split()
    assert 0 < float(words[3]) <= float(words[6])  # all ops, and the time from the first step to the last
    titles = [line for line in rest if line.endswith(" ms") and "steps of" in line]
    assert [title.split()[0] for title in titles] == ["3", "2"]  # every run once, by its number of tokens
    names = {line.split()[0] for line in rest if line.startswith("  ")}
    assert {"linear", "norm", "embed", "gather_rows"} <= names
    assert names & {"attention", "rope_attention"}
    linears = [line for line in rest if line.startswith("  linear f32 ")]
    assert linears and all(float(line.split()[-1]) >= 0 for line in linears)


def test_ops_of_a_step_are_told_once(
    stories: Path, profile: profiling.Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layer has one attention, however many runs were captured."""
    monkeypatch.setenv("TAHR_PROFILE", "1")
    rows_of_runs(open_backend("cuda"), stories, [4] * N_RUNS)
    n_layers = open_model([stories]).model_config().n_layers
    counts = {line.split()[0]: int(line.split()[1]) for line in profile.report().splitlines() if "attention" in line}
    assert counts.get("attention", counts.get("rope_attention")) == n_layers * N_RUNS


@pytest.mark.skipif(interprets(), reason="an engine takes minutes where kernels are interpreted")
def test_an_engine_is_timed(stories: Path, profile: profiling.Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    def reply() -> list[int]:
        backend = open_backend("cuda")
        config = EngineConfig(context_size=256, page_size=16)
        eng = build_engine(backend, load(open_model([stories]), backend).decoder, config)[0]
        return run(eng, submit(eng, [1, 5, 9, 300], greedy(40)))[0]

    monkeypatch.delenv("TAHR_PROFILE", raising=False)
    plain = reply()
    monkeypatch.setenv("TAHR_PROFILE", "1")
    assert reply() == plain
    shown = profile.report()
    assert any(int(line.split()[0]) >= 39 for line in shown.splitlines() if line[:1].isdigit())
