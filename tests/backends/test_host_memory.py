"""The memory of a host, and of containers with less: real files of control groups, versions 1 and 2."""

from pathlib import Path

import numpy as np
import pytest

from random_weights import random_tensor
from tahr.backends import open_backend
from tahr.backends.host import memory as host_memory
from tahr.backends.host.memory import VERSION_1, VERSION_2, host_free_bytes, host_total_bytes
from tahr.errors import LoadError

MB = 1 << 20


def add_group(folder: Path, files: host_memory.GroupFiles, limit: str, used: int, cache: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / files.limit).write_text(f"{limit}\n")
    (folder / files.used).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\n{files.cache} {cache}\n")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host_memory, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(host_memory, "VERSION_1", VERSION_1._replace(root=tmp_path / "memory"))
    monkeypatch.setattr(host_memory, "VERSION_2", VERSION_2._replace(root=tmp_path))
    return tmp_path


def test_no_groups_leave_the_machine(root: Path) -> None:
    assert MB < host_free_bytes() < host_total_bytes()
    assert host_free_bytes() == pytest.approx(host_memory.machine_free_bytes(), rel=0.2)


def test_a_limit_of_an_outer_group_counts(root: Path) -> None:
    (root / "own").write_text("0::/outer/inner\n")
    add_group(root / "outer", VERSION_2, str(64 * MB), 20 * MB, 5 * MB)
    add_group(root / "outer/inner", VERSION_2, "max", 3 * MB, 0)
    assert host_total_bytes() == 64 * MB and host_free_bytes() == 49 * MB


def test_version_1_in_a_container_whose_path_is_the_hosts(root: Path) -> None:
    (root / "own").write_text("5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n")
    add_group(root / "memory", VERSION_1, str(32 * MB), 40 * MB, 2 * MB)
    assert host_total_bytes() == 32 * MB and host_free_bytes() == 0


def test_files_of_another_form_say_nothing(root: Path) -> None:
    add_group(root / "odd", VERSION_2, "64 MB", 1, 0)
    add_group(root / "odd/inner", VERSION_2, "64", 1, 0)
    (root / "own").write_text("0::/odd/inner\n")
    (root / "odd/inner/memory.stat").write_text("anon\n")
    assert host_total_bytes() > 64 * MB


def test_a_model_beyond_the_machine_is_refused_before_the_system_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tahr._native", reason="the native code is not built")
    matrix, meminfo = random_tensor("Q8_0", (64, 256), np.random.default_rng(0)), tmp_path / "meminfo"
    cpu = open_backend("cpu", n_threads=1)
    monkeypatch.setattr(host_memory, "MEMINFO", meminfo)
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable: 10 kB\nSwapFree: 5 kB\nHugePages_Total: 0\n")
    with pytest.raises(LoadError, match="more memory than is free"):
        cpu.weight(matrix)
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable: 10 kB\nSwapFree: 50 kB\n")
    assert cpu.weight(matrix).n_bytes > 15 * 1024
