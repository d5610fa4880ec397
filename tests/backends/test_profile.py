"""TAHR_PROFILE: what is booked, what is printed, and that results and unprofiled runs do not change."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tahr.backends import open_backend
from tahr.backends.cpu import profile as tape_profile
from tahr.backends.cpu.queue import new_tape
from tahr.backends.host import profile as profiling
from tahr.backends.host.profile import Label, TimedOp
from tahr.errors import ConfigError
from tahr.models.loader.load import load, open_model
from tahr.tools.full_logits import all_logits

native = pytest.importorskip("tahr._native")


def test_time_is_booked_by_size_of_step_and_op() -> None:
    clock = iter(range(0, 1_000_000_000, 50_000_000))
    profile = profiling.Profile(lambda: next(clock) + 1)
    for n, spent in ((1, [1_000_000, 3_000_000]), (1, [1_000_000, 5_000_000]), (40, [7, 9])):
        profile.begin()
        labels = [Label("norm"), Label("linear", 8_000_000, 1000)]
        profile.book(n, [TimedOp(label, each, n) for label, each in zip(labels, spent, strict=True)])
    shown = profile.report().splitlines()
    assert shown[0] == "TAHR_PROFILE: ops took 10.0 ms of 150.0 ms from the first step to the last"
    assert shown[2] == "2 steps of 1 token, 10.0 ms"
    assert shown[4].split() == ["linear", "2", "8.00", "80.0", "%", "2.0", "0.0"]  # 16 MB in 8 ms
    assert shown[5].split() == ["norm", "2", "2.00", "20.0", "%"]
    assert shown[7].startswith("1 steps of more than 16 tokens")


def test_a_timed_model_gives_the_same_numbers(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def logits() -> np.ndarray:
        backend = open_backend("cpu", n_threads=2)
        return all_logits(backend, load(open_model([stories]), backend).decoder, [1, 5, 9, 300], chunk=3)

    plain = logits()
    profile = profiling.Profile()
    monkeypatch.setenv("TAHR_PROFILE", "1")
    monkeypatch.setattr(tape_profile, "profile_of_process", lambda: profile)
    assert (logits() == plain).all()
    head, *rest = profile.report().splitlines()
    words = head.split()
    assert 0 < float(words[3]) <= float(words[6])
    assert any(line.split()[0] == "attention" for line in rest if line)
    assert any(line.startswith("  linear f32 ") for line in rest)


def test_nothing_is_timed_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAHR_PROFILE", raising=False)
    assert type(new_tape(native.isas()[0])) is native.Tape


def test_the_reference_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAHR_PROFILE", "1")
    with pytest.raises(ConfigError, match="not of reference"):
        open_backend("reference")


def test_bench_prints_the_table_at_exit(stories: Path) -> None:
    words = ["bench", str(stories), "-p", "20", "-n", "3", "-r", "1", "--backend", "cpu", "--profile", "--json"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "tahr", *words], env=environ, capture_output=True, text=True, check=True
    )
    assert "TAHR_PROFILE: ops took" in done.stderr and "TAHR_PROFILE" not in done.stdout
    assert "2 steps of more than 16 tokens" in done.stderr  # one of them to warm up
    assert "6 steps of 1 token," in done.stderr
