"""Steps whose weights could not be read, and those after them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tahr.backends import open_backend
from tahr.backends.cpu.backend import CpuBackend
from tahr.errors import LoadError, OffloadEof, OffloadError
from tahr.models.loader.load import load
from tahr.offload.homes import SlotArena
from test_paging import all_paged, as_gguf, load_paged, logits, sized


def test_a_failure_of_two_arenas_fails_one_step(tmp_path: Path) -> None:
    source = as_gguf(tmp_path, "qwen3_moe")
    backend = open_backend("cpu", 2)
    want = logits(load(source, backend), backend)
    plan = all_paged(sized(source, backend))
    assert [arena.by_usage for arena in plan.arenas] == [False, True]
    loaded = load_paged(source, backend, plan)
    path = tmp_path / "model.gguf"
    whole = path.read_bytes()
    for _ in range(2):
        os.truncate(path, len(whole) // 2)  # the embedding, which is mapped, stays
        with pytest.raises(OffloadEof, match="ends before"):
            logits(loaded, backend)
        path.write_bytes(whole)
        np.testing.assert_array_equal(logits(loaded, backend), want)


def test_slots_that_do_not_hold_a_matrix_fail_at_once(tmp_path: Path) -> None:
    source = as_gguf(tmp_path, "llama")
    backend = open_backend("cpu", 2)
    assert isinstance(backend, CpuBackend)
    plan = all_paged(sized(source, backend))
    narrow = [SlotArena(arena.slot_bytes, 1, by_usage=arena.by_usage) for arena in plan.arenas]
    loaded = load_paged(source, backend, plan._replace(arenas=narrow))
    with pytest.raises(OffloadError, match=r"reads \d+ slots .* memory for 1\. .* raise the ram_budget"):
        logits(loaded, backend)


def test_what_was_read_of_a_file_that_was_changed_is_read_again(tmp_path: Path) -> None:
    source = as_gguf(tmp_path, "llama")
    backend = open_backend("cpu", 2)
    loaded = load_paged(source, backend, all_paged(sized(source, backend)))
    want = logits(loaded, backend)
    path = tmp_path / "model.gguf"
    whole = path.read_bytes()
    begin = len(whole) // 2
    for at, content in ((1, whole[:begin] + bytes(len(whole) - begin)), (2, whole)):
        with path.open("r+b") as file:
            file.write(content)
        os.utime(path, ns=(at, at))  # clocks of file systems are coarse
        assert np.array_equal(logits(loaded, backend), want) == (content == whole)


def test_memory_that_the_system_lacks_is_refused_with_a_sentence() -> None:
    with pytest.raises(LoadError, match=r"does not give the \d+\.\d MB .* lower the ram_budget"):
        open_backend("cpu", 2).hold_arenas([SlotArena(1 << 20, 1 << 38, by_usage=False)])


IN_LITTLE_MEMORY = """
import resource
from tahr import _native

def n_mapped():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

resource.setrlimit(resource.RLIMIT_AS, (n_mapped() + (400 << 20),) * 2)
for _ in range(4):
    before = n_mapped()
    try:
        _native.Pager(by_usage=False, slot_bytes=64 << 20, n_slots=1, n_readers=8, n_ahead=0)
    except (MemoryError, RuntimeError):
        assert n_mapped() - before < 160 << 20
    else:
        raise SystemExit("there was memory")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit and the count are those of Linux")
def test_an_arena_that_cannot_be_made_leaves_nothing() -> None:
    run = subprocess.run([sys.executable, "-c", IN_LITTLE_MEMORY], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
