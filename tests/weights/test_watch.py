"""A model whose file changes while it is in use: a clear error instead of a crash or garbage; other models go on."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gguf_maker import Gguf, Stored
from tahr import LLM, AsyncLLM, SamplingParams
from tahr._native import MappedFile
from tahr.backends.cpu.backend import CpuBackend
from tahr.errors import GenerateError, WeightsChanged
from tahr.server.models.llm_engine import LlmEngine
from tahr.server.models.registry import Health, ServedModel
from tahr.weights import FileWatch, open_gguf
from tahr.weights.watch import refuse_changed

GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPT = "Once upon a time"


@pytest.fixture
def copy(stories: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(stories, tmp_path / "model.gguf"))


def overwrite(path: Path, n_kept: int = 0) -> None:
    """Other bytes in place, as a careless copy leaves them."""
    n_bytes = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(n_kept)
        file.write(os.urandom(n_bytes - n_kept))


def test_an_overwritten_file_is_noticed(copy: Path, stories: Path) -> None:
    model, other = LLM(str(copy)), LLM(str(stories))
    before = model.generate(PROMPT, GREEDY).text
    overwrite(copy, n_kept=4096)
    for _ in range(2):
        with pytest.raises(WeightsChanged, match=r"model\.gguf.*Load the model again"):
            model.generate(PROMPT, GREEDY)
    assert other.generate(PROMPT, GREEDY).text == before, "another model is unharmed"
    assert issubclass(WeightsChanged, GenerateError)


CUT_SHORT = """
import os, sys
from tahr import LLM, SamplingParams
from tahr.errors import WeightsChanged
model, params = LLM(sys.argv[1]), SamplingParams(max_tokens=2)
model.generate("Once upon a time", params)
os.truncate(sys.argv[1], 4096)
try:
    model.generate("The big dog and the small cat", params)
except WeightsChanged:
    print("noticed")
"""


def test_a_file_that_is_cut_short_does_not_kill(copy: Path) -> None:
    command = [sys.executable, "-c", CUT_SHORT, str(copy)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (ran.returncode, ran.stdout.strip()) == (0, "noticed"), ran.stderr[-2000:]


def test_a_replaced_or_touched_file_does_no_harm(copy: Path, stories: Path, tmp_path: Path) -> None:
    model = LLM(str(copy))
    before = model.generate(PROMPT, GREEDY).text
    os.utime(copy)
    assert model.generate(PROMPT, GREEDY).text == before
    (tmp_path / "new").write_bytes(b"something else")
    (tmp_path / "new").replace(copy)
    assert model.generate(PROMPT, GREEDY).text == before
    copy.unlink()
    assert model.generate(PROMPT, GREEDY).text == before


def test_the_server_sees_it_before_a_request_does(copy: Path) -> None:
    llm = AsyncLLM(str(copy))
    try:
        model = ServedModel(("story",), LlmEngine(llm))
        assert model.fault == "" and model.health() is Health.OK
        os.truncate(copy, 4096)
        for _ in range(2):
            assert "cut short" in model.fault and str(copy) not in model.fault
            assert model.health() is Health.FAILING
    finally:
        asyncio.run(llm.close())


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(Gguf({}, [Stored("t", [1 << 20], 0, bytes(4 << 20))]).to_bytes())
    return path


@pytest.mark.parametrize("place", [0, 100, 3 << 20, (4 << 20) - 1])
def test_where_a_file_is_overwritten_does_not_matter(small: Path, place: int) -> None:
    watch = FileWatch([open_gguf(small).tensors["t"].source])
    watch.check()
    with small.open("r+b") as file:
        file.seek(place)
        file.write(os.urandom(1 << 20))
    with pytest.raises(WeightsChanged):
        watch.check()


def test_a_file_that_changes_while_it_is_loaded_is_refused(small: Path) -> None:
    source = open_gguf(small).tensors["t"].source
    refuse_changed([source, None])
    with small.open("ab") as file:
        file.write(b"more")
    with pytest.raises(WeightsChanged):
        refuse_changed([source])


def test_the_native_stamp_is_the_systems(small: Path) -> None:
    with small.open("rb") as file:
        found = os.fstat(file.fileno())
        assert CpuBackend.file_stamp(file.fileno()) == (found.st_size, found.st_mtime_ns)
        watch = FileWatch([open_gguf(small).tensors["t"].source])
        watch.check(CpuBackend.file_stamp)
        os.truncate(small, 4096)
        with pytest.raises(WeightsChanged):
            watch.check(CpuBackend.file_stamp)
    with pytest.raises(OSError, match="descriptor"):
        CpuBackend.file_stamp(-1)


@pytest.mark.serial
def test_watching_takes_next_to_no_time(small: Path) -> None:
    watch = FileWatch([open_gguf(small).tensors["t"].source])
    start = time.perf_counter()
    for _ in range(1000):
        watch.check()
    assert time.perf_counter() - start < 0.4, "more than 400 microseconds a step"


def test_files_are_closed_with_their_model(small: Path) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("this system does not list open files")
    n_open = len(list(descriptors.iterdir()))
    for _ in range(20):
        FileWatch([open_gguf(small).tensors["t"].source])
    assert len(list(descriptors.iterdir())) <= n_open + 2


# ---- a file that is cut short while it is read ----------------------------------------------------------------


def run_python(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=60)


READ_AFTER_CUT = """
import os, sys
import numpy as np
from tahr.errors import WeightsChanged
from tahr.weights import FileWatch, open_gguf
from tahr.weights.watch import refuse_changed
tensor = open_gguf(sys.argv[1]).tensors["t"]
watch, n_bytes = FileWatch([tensor.source]), os.path.getsize(sys.argv[1])
os.truncate(sys.argv[1], 8192)
assert not tensor.data[-1] and not tensor.data[1 << 20] and not tensor.dense()[1 << 19 :].any()
os.truncate(sys.argv[1], n_bytes)
for refuse in (watch.refuse_cut, watch.check, lambda: refuse_changed([tensor.source])):
    try:
        refuse()
    except WeightsChanged as error:
        print("noticed")
"""


@pytest.mark.parametrize("first", ["", "import faulthandler; faulthandler.enable()"])
def test_reading_what_was_cut_off_gives_zeros_and_is_noticed(first: str, small: Path) -> None:
    ran = run_python(first + READ_AFTER_CUT, str(small))
    assert (ran.returncode, ran.stdout.split()) == (0, ["noticed"] * 3), ran.stderr[-2000:]


def test_a_file_that_is_cut_in_the_middle_of_a_step_does_not_kill(copy: Path) -> None:
    """The table of embeddings is cut after the check before a step: no token of the step is given out."""
    program = CUT_SHORT.replace(
        "os.truncate(sys.argv[1], 4096)",
        """
files = model.engine.executor.decoder.files
checked = files.check
def check(stamp_of):
    checked(stamp_of)
    os.truncate(sys.argv[1], 4096)
    files.check = checked
files.check = check
""",
    ).replace('print("noticed")', 'print("noticed", model.engine.executor.decoder.files.check is checked)')
    ran = run_python(program, str(copy))
    assert (ran.returncode, ran.stdout.strip()) == (0, "noticed True"), ran.stderr[-2000:]


CUT_IN_LOAD = """
import os, sys
from tahr import LLM
from tahr.errors import TahrError
from tahr.weights.tensor import HostTensor
kept = HostTensor.forget
def forget(tensor):
    kept(tensor)
    os.truncate(sys.argv[1], 4096)
HostTensor.forget = forget
try:
    LLM(sys.argv[1])
except TahrError as error:
    print(type(error).__name__)
"""


def test_a_file_that_is_cut_while_it_is_loaded_does_not_kill(copy: Path) -> None:
    ran = run_python(CUT_IN_LOAD, str(copy))
    assert (ran.returncode, ran.stdout.strip()) == (0, "WeightsChanged"), ran.stderr[-2000:]


ELSEWHERE = """
import mmap, os, signal, sys
from tahr.weights import open_gguf
{before}
kept = open_gguf(sys.argv[1])
gone = open_gguf(sys.argv[1])
del gone
other = mmap.mmap(os.open(sys.argv[2], os.O_RDONLY), 0, access=mmap.ACCESS_READ)
os.truncate(sys.argv[2], 0)
other[1 << 20]
"""


@pytest.mark.parametrize("before", ["", "import faulthandler; faulthandler.enable()"])
def test_faults_elsewhere_go_to_who_had_them(before: str, small: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(bytes(2 << 20))
    ran = run_python(ELSEWHERE.format(before=before), str(small), str(other))
    assert ran.returncode == -signal.SIGBUS
    assert ("Fatal Python error: Bus error" in ran.stderr) == bool(before)


def test_a_bus_error_that_is_sent_ends_the_process(small: Path) -> None:
    sent = "import os, signal, sys; from tahr.weights import open_gguf; m = open_gguf(sys.argv[1]); "
    ran = run_python(sent + "os.kill(os.getpid(), signal.SIGBUS); import time; time.sleep(5)", str(small))
    assert ran.returncode == -signal.SIGBUS


def test_guards_are_given_back(small: Path) -> None:
    """More mappings than there can be at once, one after the other."""
    for _ in range(5000):
        assert MappedFile(1 << 40, 4096).was_cut is False
    for _ in range(50):
        open_gguf(small)
    many = [MappedFile(1 << 40, 4096) for _ in range(4000)]
    with pytest.raises(RuntimeError, match="too many"):
        many += [MappedFile(1 << 40, 4096) for _ in range(4096)]
