"""A model whose file changes while it is in use: a clear error instead of a crash or garbage; other models go on."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gguf_maker import Gguf, Stored
from tahr import LLM, SamplingParams
from tahr.backends.cpu.backend import CpuBackend
from tahr.errors import GenerateError, WeightsChanged
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
    assert time.perf_counter() - start < 0.1, "more than 100 microseconds a step"


def test_files_are_closed_with_their_model(small: Path) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("this system does not list open files")
    n_open = len(list(descriptors.iterdir()))
    for _ in range(20):
        FileWatch([open_gguf(small).tensors["t"].source])
    assert len(list(descriptors.iterdir())) <= n_open + 2
