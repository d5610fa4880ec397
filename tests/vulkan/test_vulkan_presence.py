"""Finding Vulkan devices, and saying in a sentence why one cannot be had. Nothing here needs a device."""

import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from sources import ROOT
from tahr.backends import describe_devices, open_backend, own_memory
from tahr.backends.vulkan import presence, shaders
from tahr.backends.vulkan.weights import KINDS, PLANES
from tahr.errors import ConfigError

sys.path.insert(0, str(ROOT / "scripts"))
vulkan_kernels = importlib.import_module("vulkan_kernels")

GLSLC = ROOT / ".vulkan-tools" / "glslc"


def card(name: str, kind: int = 2, missing: str = "") -> SimpleNamespace:
    words = {"driver": "d", "api_version": 1 << 22 | 3 << 12, "memory_bytes": 8 << 30, "subgroup_size": 32}
    return SimpleNamespace(name=name, type=kind, missing=missing, matrix=[0, 0, 0], **words)


CARDS = [
    card("llvmpipe (LLVM)", 4),
    card("Intel Arc", 1),
    card("Radeon RX"),
    card("Old Radeon", 2, "bufferDeviceAddress"),
]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv(presence.CHOICE, raising=False)
    monkeypatch.setattr(presence, "probed", lambda: (CARDS, ""))
    return monkeypatch


def test_a_card_of_its_own_is_better_than_one_in_the_processor(cards: pytest.MonkeyPatch) -> None:
    assert presence.choose("") == 2
    assert presence.choose("arc") == 1
    assert presence.choose("0") == 0
    assert presence.choose("LLVMPIPE") == 0
    cards.setenv(presence.CHOICE, "1")
    assert presence.choose("") == 1
    assert presence.choose("radeon") == 2
    assert own_memory("vulkan:radeon") == 8 << 30
    assert own_memory("vulkan:arc") == own_memory("vulkan:geforce") == 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("7", r"no Vulkan device '7' here. There are: 0: llvmpipe \(LLVM\), 1: Intel Arc, 2: Radeon RX, 3: Old Radeon"),
        ("geforce", "no Vulkan device 'geforce' here"),
        ("old", "cannot use Old Radeon: it lacks bufferDeviceAddress"),
    ],
)
def test_what_is_absent_is_said(asked: str, said: str, cards: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=said):
        presence.choose(asked)


def test_the_processor_is_no_card(cards: pytest.MonkeyPatch) -> None:
    cards.setattr(presence, "probed", lambda: (CARDS[:1], ""))
    with pytest.raises(ConfigError, match="no graphics card that speaks Vulkan here, but 0: llvmpipe"):
        presence.choose("")


def test_devices_are_listed(cards: pytest.MonkeyPatch) -> None:
    lines = describe_devices()
    first = lines.index("vulkan")
    assert lines[first + 3].split(maxsplit=1) == [
        "vulkan:2",
        "Radeon RX, discrete, Vulkan 1.3.0, d, 8.6 GB, subgroups of 32",
    ]
    assert lines[first + 4].endswith("cannot be used: it lacks bufferDeviceAddress")


def test_only_vulkan_has_devices_to_choose_from() -> None:
    with pytest.raises(ConfigError, match="The reference backend has no devices to choose from: leave out 'gpu'"):
        open_backend("reference:gpu")
    with pytest.raises(ConfigError, match="The vulkan backend has no threads to set"):
        open_backend("vulkan", n_threads=2)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no child processes to look for devices in")
@pytest.mark.parametrize(("broken", "said"), [("abort", "crashes"), ("exit", "ends the process")])
def test_a_driver_that_breaks_takes_a_child_with_it(broken: str, said: str, tmp_path: Path) -> None:
    """A library in the loader's place that ends the process when it is opened."""
    source = tmp_path / "broken.c"
    source.write_text(
        f"#include <stdlib.h>\n#include <unistd.h>\n__attribute__((constructor)) void f(void) {{ "
        f"{'abort()' if broken == 'abort' else '_exit(0)'}; }}\n"
    )
    made = subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(tmp_path / "libvulkan.so.1")], check=False)
    if made.returncode:
        pytest.skip("there is no C compiler here")
    code = "from tahr.backends.vulkan import presence; print(presence.probed()[1])"
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert said in done.stdout


def test_every_kind_of_matrix_has_its_kernels() -> None:
    codes = shaders.codes()
    assert set(codes) == set(vulkan_kernels.variants())
    assert {f"linear_{kind}" for kind in PLANES} <= set(codes)
    packed = {form for form, kind in KINDS.items() if not PLANES[kind].is_dense}
    assert {name.removeprefix("repack_") for name in codes if name.startswith("repack_")} == packed
    assert {form: kind for form, (_, kind) in vulkan_kernels.FORMATS.items()} == {form: KINDS[form] for form in packed}


def test_the_archive_is_made_of_its_sources() -> None:
    if not GLSLC.exists():
        assert not os.environ.get("TAHR_VULKAN_DEVICE"), "run: scripts/vulkan_tools.sh .vulkan-tools"
        pytest.skip("scripts/vulkan_tools.sh .vulkan-tools fetches the compiler of the kernels")
    made = vulkan_kernels.compile_all(str(GLSLC))
    assert [name for name, code in vulkan_kernels.archived().items() if made.get(name) != code] == []
    assert made.keys() == vulkan_kernels.archived().keys()


def test_the_archive_is_small() -> None:
    assert shaders.ARCHIVE.stat().st_size < 700_000
    with zipfile.ZipFile(shaders.ARCHIVE) as archive:
        assert all(name.isidentifier() for name in archive.namelist())


def test_a_damaged_cache_of_pipelines_is_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "cache.bin"
    assert shaders.kept_pipelines(file) == b""
    shaders.keep_pipelines(file, b"pipelines")
    assert shaders.kept_pipelines(file) == b"pipelines"
    file.write_bytes(file.read_bytes()[:-1])
    assert shaders.kept_pipelines(file) == b""
    shaders.keep_pipelines(tmp_path / "deep" / "cache.bin" / "no folder", b"x")
