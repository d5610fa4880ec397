"""64 requests give the bits on record, and the comparison sees the last bit of a number."""

import base64
import importlib
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests" / "fixtures" / "same_bits.json"


def test_64_requests_give_the_bits_on_record() -> None:
    """With the scalar kernels, in a process of its own: which kernels run is settled once."""
    machine = json.loads(RECORD.read_text())["made_on"]["machine"]
    if platform.machine() != machine:
        pytest.skip(f"the bits on record are those of {machine}; others' C libraries may round exp and log otherwise")
    command = [sys.executable, str(ROOT / "benchmarks" / "same_bits.py"), "check", str(RECORD)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert done.stdout == "0 of 64 requests differ from the record (scalar kernels).\n"


def test_one_bit_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    same_bits = importlib.import_module("same_bits")
    name, entry = next(iter(json.loads(RECORD.read_text())["requests"].items()))
    changed = json.loads(json.dumps(entry))
    data = bytearray(base64.b64decode(changed["logprobs"]["values"]))
    data[16] ^= 1
    changed["logprobs"]["values"] = base64.b64encode(data).decode()
    assert list(same_bits.differences(name, entry, entry)) == []
    (found,) = same_bits.differences(name, entry, changed)
    assert found.startswith(f"{name}: logprobs: values[2] is ")
    changed["tokens"].append(5)
    assert len(list(same_bits.differences(name, entry, changed))) == 2
