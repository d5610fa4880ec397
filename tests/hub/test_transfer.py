"""One large file over a bad line: resumed, shared between connections and processes, checked, never half in place."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fake_hub import Hub, own_places, serve_hub, sha256
from tahr import hub
from tahr.errors import DownloadError
from tahr.hub import hf_cache, store, transfer
from tahr.hub.progress import Progress

GGUF = b"GGUF" + os.urandom(5000)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    own_places(monkeypatch, tmp_path)
    monkeypatch.setattr(transfer, "FIRST_RETRY_S", 0.01)
    with serve_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def blobs(repo: str) -> list[str]:
    return sorted(path.name for path in (hf_cache.Repo(repo).root / "blobs").glob("*"))


def partials(repo: str) -> list[Path]:
    return list((hf_cache.Repo(repo).root / "blobs").glob("*.tahr-partial*"))


def wait_for(child: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def python(code: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def big(fake: Hub, size_bytes: int = 12 << 20) -> bytes:
    data = b"GGUF" + os.urandom(size_bytes)
    fake.repos["org/big-GGUF"] = {"big-Q4_K_M.gguf": data}
    return data


def test_a_killed_download_resumes(fake: Hub) -> None:
    data = big(fake)
    fake.stall_at = 9 << 20
    child = python("from tahr import hub; hub.resolve('org/big-GGUF')")
    wait_for(child, lambda: any(path.suffix == ".json" for path in partials("org/big-GGUF")))
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert hf_cache.find(hub.parse("org/big-GGUF")) is None
    assert [(entry.name, entry.status) for entry in hub.list_models()] == [("org/big-GGUF", "incomplete")]
    fake.release.set()
    fake.stall_at, fake.n_body_bytes = None, 0
    assert hub.resolve("org/big-GGUF").weights[0].read_bytes() == data
    assert 0 < fake.n_body_bytes < len(data)
    assert any("If-Range" in headers and "Range" in headers for headers in fake.headers)
    assert blobs("org/big-GGUF") == [sha256(data)], "no partial, note or lock is left"


def test_several_connections_fill_one_file(fake: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SINGLE_STREAM_BYTES", 1 << 20)
    data = big(fake, 3 << 20)
    assert hub.resolve("org/big-GGUF").weights[0].read_bytes() == data
    ranges = {headers["Range"] for headers in fake.headers if "Range" in headers}
    assert len(ranges) == transfer.N_CONNECTIONS and fake.n_body_bytes == len(data)


@pytest.mark.parametrize("size_bytes", [1 << 18, 3 << 20])
def test_a_dropped_connection_and_a_busy_server_are_tried_again(
    fake: Hub, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    monkeypatch.setattr(transfer, "SINGLE_STREAM_BYTES", 1 << 20)
    data = big(fake, size_bytes)
    fake.drop_at, fake.fail_times = 1 << 17, 2
    assert hub.resolve("org/big-GGUF").weights[0].read_bytes() == data


def test_a_server_that_stays_busy_is_given_up_and_the_partial_kept(fake: Hub) -> None:
    data = big(fake, 1 << 20)
    fake.drop_at = 1 << 19

    class Saboteur(Progress):
        def advance(self, n_bytes: int) -> None:
            fake.fail_times = 100  # from the first bytes on

    with pytest.raises(DownloadError, match="in a row"):
        hub.resolve("org/big-GGUF", progress=Saboteur())
    fake.fail_times = fake.n_body_bytes = 0
    assert hub.resolve("org/big-GGUF").weights[0].read_bytes() == data
    assert fake.n_body_bytes < len(data)


def test_a_server_without_ranges_still_works(fake: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SINGLE_STREAM_BYTES", 1 << 20)
    data = big(fake, 3 << 20)
    fake.ignore_ranges = True
    assert hub.resolve("org/big-GGUF").weights[0].read_bytes() == data


def test_a_republished_object_discards_the_partial(fake: Hub, tmp_path: Path) -> None:
    data = big(fake, 1 << 20)
    url = f"{fake.content_url}/org/big-GGUF/big-Q4_K_M.gguf"
    job = transfer.Download(url, tmp_path / "x", len(data), sha256(data), "sha256", "x")
    partial = transfer.Partial(job)
    partial._keep(partial.segments[0], bytes(1 << 19))  # what an older object held there
    partial.etag = '"older"'
    partial.close()
    transfer.fetch(job, Progress())
    assert (tmp_path / "x").read_bytes() == data


@pytest.mark.parametrize("file", ["m-Q4_K_M.gguf", "config.json"])
def test_a_corrupt_byte_is_an_error_and_leaves_no_file(fake: Hub, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": GGUF, "config.json": b"{}"}
    if file == "config.json":
        monkeypatch.setattr("fake_hub.git_sha1", lambda data: "0" * 40)
    else:
        fake.damage = b"GGUG"
    with pytest.raises(DownloadError, match=f"{file} arrived damaged"):
        hub.resolve("org/m-GGUF")
    assert sha256(GGUF) not in blobs("org/m-GGUF")
    assert not any("partial" in name for name in blobs("org/m-GGUF"))


def test_a_full_disk_is_one_sentence_and_no_final_file(fake: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": GGUF}

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(transfer.os, "pwrite", full)
        with pytest.raises(DownloadError, match="is full"):
            hub.resolve("org/m-GGUF")
        patch.setattr(store.shutil, "disk_usage", lambda _: argparse.Namespace(free=10))
        with pytest.raises(DownloadError, match="10 B left"):
            hub.resolve("org/m-GGUF")
    assert sha256(GGUF) not in blobs("org/m-GGUF")
    assert hub.resolve("org/m-GGUF").weights[0].read_bytes() == GGUF


def test_concurrent_pulls_fetch_once(fake: Hub) -> None:
    data = big(fake, 4 << 20)
    code = "from tahr import hub; print(hub.resolve('org/big-GGUF').path)"
    children = [python(code) for _ in range(2)]
    outputs = {child.communicate(timeout=60)[0] for child in children}
    assert len(outputs) == 1 and not any(child.returncode for child in children)
    assert fake.n_body_bytes == len(data)


def test_a_lock_is_waited_for_and_leaves_nothing_behind(tmp_path: Path) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        with store.lock(tmp_path / "x", waiting.set):
            order.append("second")

    with store.lock(tmp_path / "x", lambda: pytest.fail("nobody else is here")):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"] and not list(tmp_path.iterdir())


def test_ctrl_c_keeps_the_partial_and_exits_130(fake: Hub) -> None:
    data = big(fake, 3 << 20)
    fake.stall_at = 2 << 20
    child = python("import sys; from tahr.cli.main import main; sys.exit(main(['pull', 'org/big-GGUF']))")
    # Most of it: the server counts what it had left to send, too.
    wait_for(child, lambda: any(path.stat().st_size > 3 << 19 for path in partials("org/big-GGUF")))
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130 and out == b"" and b"Traceback" not in err
    fake.release.set()
    fake.stall_at, fake.n_body_bytes = None, 0
    assert hub.pull("org/big-GGUF").weights[0].read_bytes() == data
    assert fake.n_body_bytes < len(data)
