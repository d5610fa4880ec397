"""Every input that the fuzzer is kept with, and everything it found, without the fuzzer."""

import sys
import time
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[2] / "fuzz"
sys.path.insert(0, str(FUZZ))

from targets import TARGETS, kept, tried  # noqa: E402

MOST_S = 20.0  # of one input, on a busy machine
INPUTS = [pytest.param(name, path, id=f"{name}-{path.name}") for name in TARGETS for path in kept(name)]


@pytest.mark.parametrize(("name", "path"), INPUTS)
def test_kept_inputs_are_read_or_refused(name: str, path: Path) -> None:
    began = time.perf_counter()
    refused = tried(name, path.read_bytes())
    assert time.perf_counter() - began < MOST_S
    assert not refused or path.name.startswith("found-"), "an ordinary input is refused"


def test_every_target_has_inputs() -> None:
    assert all(kept(name) for name in TARGETS)
