"""Benchmarks follow the code they measure: each can be imported, and the one of the host's work runs."""

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
ELSEWHERE = {"torch", "triton", "llama_cpp", "matplotlib", "onnx", "onnxruntime"}  # not among the tests' own packages


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_imported(name: str) -> None:
    known = set(sys.modules)
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ELSEWHERE:
            raise
        pytest.skip(f"needs {error.name}")
    finally:
        for each in set(sys.modules) - known:  # their names are short, and others' too
            if each in NAMES:
                del sys.modules[each]


def test_the_work_of_the_host_is_measured() -> None:
    host = importlib.import_module("engine_host")
    from tahr.config import SamplingParams

    engine = host.filled(2, SamplingParams(temperature=0.0, max_tokens=5))
    assert len(host.step_times_s(engine)) == 3


def test_the_gate_keeps_the_native_module_it_ran() -> None:
    gate = importlib.import_module("gate")
    from tahr import _native

    assert _native.__file__
    path = Path(_native.__file__)
    assert gate.about("m", "cpu")["binaries"][path.name] == hashlib.sha256(path.read_bytes()).hexdigest()
