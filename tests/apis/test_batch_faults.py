"""Batches and files at their limits: full disks, engines that fail, records that are damaged."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import openai
import pytest

from batch_server import TEXT, line, served
from scripted_engine import ScriptedEngine
from tahr.server.batches import results, service
from tahr.server.http.errors import HttpError
from tahr.server.kept import batch_store, file_store
from tahr.server.kept.batch_store import BatchRecord, BatchStore
from tahr.server.kept.file_store import FileLimits, FileStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_bounds_of_files(folder: Path) -> None:
    with served(folder, file_max_bytes=10_000, file_store_max_bytes=25_000, file_store_max_entries=5) as server:
        with pytest.raises(openai.APIStatusError, match="--file-max-bytes") as refused:
            server.client.files.create(file=b"x" * 10_001, purpose="batch")
        assert refused.value.status_code == 413
        kept = server.client.files.create(file=b"x" * 10_000, purpose="batch").id
        with pytest.raises(openai.APIStatusError, match="as it leaves free of 25000") as refused:
            server.client.files.create(file=b"x" * 3_000, purpose="batch")
        assert refused.value.status_code == 413
        server.other.files.create(file=b"x" * 7_000, purpose="batch")
        assert len(list((folder / "files").iterdir())) == 4
        server.client.files.delete(kept)
        for _ in range(2):
            server.client.files.create(file=b"x", purpose="batch")
        with pytest.raises(openai.APIStatusError, match="--file-store-max-entries"):
            server.client.files.create(file=b"x", purpose="batch")


def test_uploads_of_one_key_leave_places_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_store, "MOST_UPLOADS", 4)
    store = FileStore(folder, FileLimits(100, 1000, 100, 1e9))
    arriving = [store.begin("one"), store.begin("one")]
    with pytest.raises(HttpError, match="one key may have as many as it leaves free of 4"):
        store.begin("one")
    arriving.append(store.begin("two"))
    with pytest.raises(HttpError, match="2 files of this key are on their way, of 3"):
        store.begin("one")
    arriving.append(store.begin("three"))
    with pytest.raises(HttpError, match="of 4, and"):
        store.begin("four")
    for each in arriving:
        store.discard(each)
    assert store.begin("four") and len(list(folder.iterdir())) == 1


def test_bounds_of_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_store, "MOST_UNFINISHED", 2)
    monkeypatch.setattr(batch_store, "MOST_BATCHES", 3)
    with served(folder) as server:
        stuck = [server.begin(line("a", prompt="HANG@1")) for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="not finished"):
            server.begin(line("a"))
        for batch in stuck:
            server.client.batches.cancel(batch.id)
            server.until(batch.id, "cancelled")
        later = [server.ended(line("a")).id for _ in range(2)]
        assert {each.id for each in server.client.batches.list()} == {stuck[1].id, *later}


def test_results_that_take_too_much_end_a_batch(folder: Path) -> None:
    with served(folder, file_store_max_bytes=4_000) as server:
        ended = server.ended(*(line(f"r{i}") for i in range(8)))
        assert ended.status == "failed" and ended.errors and ended.errors.data
        assert ended.errors.data[0].code == "file_store_full"
        assert 0 < len(server.content(ended.output_file_id)) < 8


def test_a_full_disk_holds_a_batch_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on when there is space again, and no line is lost or there twice."""
    monkeypatch.setattr(service, "RETRY_S", 0.05)
    full = [True] * 5
    append = results.append

    def filled(file: BinaryIO, data: bytes) -> None:
        if full:
            full.pop()
            append(file, data[:20])  # as much as there was space for
            raise OSError(28, "No space left on device")
        append(file, data)

    monkeypatch.setattr(results, "append", filled)
    with served(folder) as server:
        ended = server.ended(*(line(f"r{i}") for i in range(40)))
        assert ended.status == "completed" and len(server.content(ended.output_file_id)) == 40 and not full


def test_a_full_disk_refuses_an_upload(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(folder) as server:

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(FileStore, "end", full)
            with pytest.raises(openai.InternalServerError, match="no space left on device"):
                server.upload(line("a"))
        assert not list((folder / "files").iterdir())
        assert server.upload(line("a"))


def test_an_engine_that_fails_holds_a_batch_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "RETRY_S", 0.05)
    engine = ScriptedEngine()
    with served(folder, engine) as server:
        engine.alive = False
        batch = server.begin(line("a", prompt="FAIL@0 x"))
        while len(engine.seen) < 4:
            time.sleep(0.01)
        engine.obeys_words = False
        n_seen = len(engine.seen)
        while len(engine.seen) == n_seen:  # what failed before is judged as of an engine that has failed
            time.sleep(0.01)
        engine.alive = True
        assert server.until(batch.id, "completed").request_counts.completed == 1  # type: ignore[union-attr]


def harm_nothing(folder: Path) -> None: ...
def truncate(folder: Path) -> None:
    for path in folder.rglob("*.json"):
        path.write_bytes(path.read_bytes()[:20])


def rename(folder: Path) -> None:
    for path in folder.rglob("*.json"):
        path.rename(path.with_name(f"{path.stem[:-1]}x.json"))


@pytest.mark.parametrize("harm", [harm_nothing, truncate, rename])
def test_records_that_are_damaged_are_left_as_they_are(
    folder: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    with served(folder) as server:
        server.ended(line("a"))
    harm(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    left = folder / "files" / f"file-{0:032x}.tmp"
    left.write_bytes(b"half")
    with served(folder) as server:
        n_files, n_batches = len(server.client.files.list().data), len(server.client.batches.list().data)
        assert (n_files, n_batches) == ((2, 1) if harm is harm_nothing else (0, 0))
        assert server.ended(line("b")).status == "completed"
    assert not left.exists() and all(path.read_bytes() == data for path, data in before.items())
    assert ("is damaged" in caplog.text) == (harm is truncate)


def test_a_file_that_somebody_takes_away_ends_its_batch(folder: Path) -> None:
    with served(folder) as server:
        file_id = server.upload(line("a"))
        (folder / "files" / f"{file_id}.data").unlink()
        assert server.http.get(f"/v1/files/{file_id}/content").status_code == 500
        batch = server.client.batches.create(input_file_id=file_id, endpoint=TEXT, completion_window="24h")
        ended = server.until(batch.id, "failed")
        assert ended.errors and ended.errors.data and ended.errors.data[0].code == "file_lost"


def test_a_server_ends_while_a_batch_that_is_cancelled_finds_no_space(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = BatchStore.enter

    def full(self: BatchStore, record: BatchRecord, status: str) -> None:
        if status == "cancelled":
            refused.append(status)
            raise OSError(28, "No space left on device")
        enter(self, record, status)

    refused: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(BatchStore, "enter", full)
        with served(folder) as server:
            batch = server.begin(line("a", prompt="HANG@1"))
            server.until(batch.id, "in_progress")
            server.client.batches.cancel(batch.id)
            while not refused:
                time.sleep(0.01)
    with served(folder) as server:  # which goes on from there
        server.until(batch.id, "cancelled")


def test_a_fault_of_ours_ends_a_batch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "validated", lambda *_: 1 / 0)
    with served(folder) as server:
        ended = server.ended(line("a"))
        assert ended.status == "failed" and ended.errors and ended.errors.data
        assert ended.errors.data[0].code == "server_error" and "has failed" in caplog.text
