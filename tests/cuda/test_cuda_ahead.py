"""Processes that compile kernels while torch is imported, on machines without a GPU."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tahr.backends.cuda import ahead

SLEEP, FAIL = "import time; time.sleep(60)", "raise SystemExit(1)"


class Started:
    """Takes the place of `begin`: processes that run other code."""

    def __init__(self, code: str) -> None:
        self._code = code
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, arguments: tuple[int, ...]) -> "subprocess.Popen[bytes]":
        self.processes.append(subprocess.Popen([sys.executable, "-c", self._code]))
        return self.processes[-1]


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for notes, beside a device that is not there."""

    def note_of(*arguments: int) -> Path:
        return tmp_path / "-".join(map(str, arguments))

    for name, replacement in {"make_context": lambda: None, "capability": lambda: 90, "note_of": note_of}.items():
        monkeypatch.setattr(ahead, name, replacement)
    return tmp_path


def started(monkeypatch: pytest.MonkeyPatch, code: str) -> Started:
    processes = Started(code)
    monkeypatch.setattr(ahead, "begin", processes)
    return processes


def test_kernels_that_were_compiled_before_start_no_process(monkeypatch: pytest.MonkeyPatch, notes: Path) -> None:
    begun = started(monkeypatch, FAIL)
    (notes / "0-999-1008-90").touch()
    ahead.Ahead(999, 1008).wait()
    assert len(begun.processes) == ahead.N_KERNELS - 1


def test_processes_that_take_too_long_are_killed(monkeypatch: pytest.MonkeyPatch, notes: Path) -> None:
    begun = started(monkeypatch, SLEEP)
    monkeypatch.setattr(ahead, "MAX_SECONDS", 0.1)
    began = time.monotonic()
    ahead.Ahead(999, 1008).wait()
    assert time.monotonic() - began < 10
    assert len(begun.processes) == ahead.N_KERNELS and all(each.returncode for each in begun.processes)


def test_processes_that_fail_or_cannot_start_are_no_error(monkeypatch: pytest.MonkeyPatch, notes: Path) -> None:
    started(monkeypatch, FAIL)
    ahead.Ahead(999, 1008).wait()

    def refuse(arguments: tuple[int, ...]) -> Any:
        raise OSError("no more processes")

    monkeypatch.setattr(ahead, "begin", refuse)
    ahead.Ahead(999, 1008).wait()


PROGRAM = """
import sys, threading
from tahr.backends.cuda import ahead
import subprocess
sleep = lambda arguments: subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
ahead.make_context, ahead.capability, ahead.begin = (lambda: None), (lambda: 90), sleep
begun = ahead.Ahead(999, 1008)
if sys.argv[1] == "waits":
    threading.Thread(target=begun.wait).start()
print(*(each.pid for each in begun._compilers), flush=True)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton's version is part of a note's name")
@pytest.mark.parametrize("thread", ["waits", "none"])
def test_the_end_of_the_program_ends_its_processes(thread: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, thread]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=Path(__file__).parents[2])
    pids = done.stdout.split()
    assert len(pids) == ahead.N_KERNELS, done.stderr
    assert not any(Path("/proc", pid).exists() for pid in pids)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton compiles without a GPU, but is not here")
def test_a_process_compiles_a_kernel_and_leaves_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What loads and launches it is there too: linked to a driver, here to an empty one."""
    driver = tmp_path / "driver" / "libcuda.so.1"
    driver.parent.mkdir()
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", driver], check=True)
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(driver.parent))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    scan = (1, 999, 1008, 90)
    assert ahead.begin(scan).wait(60) == 0
    assert ahead.note_of(*scan).exists() and list(tmp_path.glob("*/scan_kernel.cubin"))
    assert list(tmp_path.glob("*/cuda_utils*.so")) and list(tmp_path.glob("*/__triton_launcher*.so"))
