"""Fetch one file over HTTP: resumed, over several connections, checked against its digest, in place only when whole."""

from __future__ import annotations

import hashlib
import http.client
import itertools
import json
import os
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tahr.errors import DownloadError
from tahr.hub import store, web
from tahr.hub.progress import Progress
from tahr.hub.web import Transient
from tahr.regular_file import open_regular, read_bytes

N_CONNECTIONS = 8
SINGLE_STREAM_BYTES = 64 << 20  # below this, more connections cost more than they bring
CHUNK_BYTES = 1 << 20
MAX_STATE_BYTES = 1 << 20
SAVE_EVERY_BYTES = 4 << 20
JOIN_S = 2.0  # time a stop gives threads that sit in a read
N_TRIES = 5  # tries in a row without a single new byte
FIRST_RETRY_S = 1.0  # doubled with each further try


@dataclass(frozen=True)
class Download:
    """A file to fetch, its place here, and how to check it."""

    url: str
    target: Path
    size_bytes: int
    digest: str
    algorithm: Literal["sha256", "git"]  # git: the sha1 that git gives a blob
    label: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Segment:
    """A stretch of the file that one connection fills from `position` on."""

    position: int
    stop: int


class _RangesIgnored(Exception):
    """The server sends the whole file whatever part is asked for."""


def fetch(job: Download, progress: Progress) -> None:
    """Have `job.target` on disk, complete and verified; an interrupted fetch goes on where it stopped."""
    job.target.parent.mkdir(parents=True, exist_ok=True)
    with store.lock(job.target, lambda: _say_waiting(job, progress)):
        if job.target.exists():  # another process finished it while we waited
            return
        partial = Partial(job)
        store.require_space(job.target.parent, partial.behind_bytes)
        progress.start(job.label, job.size_bytes, job.size_bytes - partial.behind_bytes)
        try:
            partial.fill(progress)
        finally:
            partial.close()
            progress.finish()
        _verify(partial.path, job)
        partial.path.replace(job.target)
        partial.state_path.unlink(missing_ok=True)


def _say_waiting(job: Download, progress: Progress) -> None:
    progress.note(f"Another process is fetching {job.label}; waiting for it.")


class Partial:
    """The unfinished file with a note beside it of which stretches are there, so that any later process can go on."""

    def __init__(self, job: Download) -> None:
        self.job = job
        # Our own suffix: a file with holes must not pass for the `.incomplete` prefix that other tools append to.
        self.path = job.target.with_name(f"{job.target.name}.tahr-partial")
        self.state_path = job.target.with_name(f"{job.target.name}.tahr-partial.json")
        self.etag: str | None = None
        restored = self._restore()
        self.segments = restored or self._fresh(_n_connections(job.size_bytes))
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | (0 if restored else os.O_TRUNC), 0o644)
        self._closed = False
        self._lock = threading.Lock()
        self._unsaved_bytes = 0
        self._stop = threading.Event()

    @property
    def behind_bytes(self) -> int:
        """How much is still to come."""
        return sum(segment.stop - segment.position for segment in self.segments)

    def _restore(self) -> list[Segment]:
        try:
            state = json.loads(read_bytes(self.state_path, MAX_STATE_BYTES))
            segments = [Segment(int(position), int(stop)) for position, stop in state["segments"]]
            furthest = max((segment.position for segment in segments), default=0)
            if state["size_bytes"] != self.job.size_bytes or furthest > self.path.stat().st_size:
                return []
            if not all(0 <= segment.position <= segment.stop <= self.job.size_bytes for segment in segments):
                return []
            self.etag = state["etag"]
            return segments
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return []  # nothing usable was left: start over

    def _fresh(self, n_segments: int) -> list[Segment]:
        edges = [self.job.size_bytes * i // n_segments for i in range(n_segments + 1)]
        return [Segment(start, stop) for start, stop in itertools.pairwise(edges)]

    def fill(self, progress: Progress) -> None:
        """Fetch every missing stretch."""
        try:
            self._run_all(progress)
        except _RangesIgnored:
            progress.start(self.job.label, self.job.size_bytes)
            self.segments = self._fresh(1)
            self._stop.clear()
            self._run_all(progress)

    def _run_all(self, progress: Progress) -> None:
        todo = [segment for segment in self.segments if segment.position < segment.stop]
        if len(todo) == 1:
            return self._persist(todo[0], progress)
        ends: queue.Queue[BaseException | None] = queue.Queue()
        threads = [threading.Thread(target=self._report, args=(s, progress, ends), daemon=True) for s in todo]
        for thread in threads:
            thread.start()
        try:
            for _ in threads:
                if (error := ends.get()) is not None:
                    raise error
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(timeout=JOIN_S)
        return None

    def _report(self, segment: Segment, progress: Progress, ends: queue.Queue[BaseException | None]) -> None:
        try:
            self._persist(segment, progress)
            ends.put(None)
        except BaseException as error:
            ends.put(error)

    def _persist(self, segment: Segment, progress: Progress) -> None:
        """Fill one segment, trying again after what may pass."""
        failures = 0
        while segment.position < segment.stop and not self._stop.is_set():
            before = segment.position
            try:
                self._stream(segment, progress)
            except Transient as error:
                failures = 1 if segment.position > before else failures + 1
                if failures >= N_TRIES:
                    raise DownloadError(
                        f"Fetching {self.job.label} failed {failures} times in a row ({error}). What was fetched is"
                        " kept: check the network and pull again to go on."
                    ) from error
                self._stop.wait(FIRST_RETRY_S * 2 ** (failures - 1))

    def _stream(self, segment: Segment, progress: Progress) -> None:
        headers = {**self.job.headers, **self._range_headers(segment)}
        with web.open_url(self.job.url, headers, self.job.label) as response:
            self._accept(response, segment)
            while segment.position < segment.stop and not self._stop.is_set():
                try:
                    chunk = response.read(min(CHUNK_BYTES, segment.stop - segment.position))
                except (OSError, http.client.HTTPException) as error:
                    raise Transient(str(error)) from error
                if not chunk:
                    raise Transient("the server closed the connection early")
                self._keep(segment, chunk)
                progress.advance(len(chunk))

    def _range_headers(self, segment: Segment) -> dict[str, str]:
        if segment.position == 0 and segment.stop == self.job.size_bytes:
            return {}
        headers = {"Range": f"bytes={segment.position}-{segment.stop - 1}"}
        # If the file was published anew, the answer is the whole new file, and not a stretch of another one.
        return headers | ({"If-Range": self.etag} if self.etag else {})

    def _accept(self, response: http.client.HTTPResponse, segment: Segment) -> None:
        whole = response.status == 200
        if whole and (segment.position > 0 or segment.stop < self.job.size_bytes):
            raise _RangesIgnored
        if not whole and not (response.headers.get("Content-Range") or "").startswith(f"bytes {segment.position}-"):
            raise Transient(f"the server answered with the wrong range {response.headers.get('Content-Range')}")
        etag = response.headers.get("ETag")
        if etag and not etag.startswith("W/"):  # a weak tag may not be used with If-Range
            self.etag = etag

    def _keep(self, segment: Segment, chunk: bytes) -> None:
        with self._lock:
            if self._closed:  # a thread that came out of its read too late; the descriptor may be someone else's now
                return
            written = os.pwrite(self._file, chunk, segment.position)
            while written < len(chunk):
                written += os.pwrite(self._file, chunk[written:], segment.position + written)
            segment.position += len(chunk)
            self._unsaved_bytes += len(chunk)
            if self._unsaved_bytes >= SAVE_EVERY_BYTES:
                self._save()

    def _save(self) -> None:
        self._unsaved_bytes = 0
        segments = [(segment.position, segment.stop) for segment in self.segments]
        state = {"size_bytes": self.job.size_bytes, "etag": self.etag, "segments": segments}
        # one fixed name, so that the leftover of a killed process is overwritten
        draft = self.state_path.with_suffix(".draft")
        draft.write_text(json.dumps(state), encoding="utf-8")
        draft.replace(self.state_path)

    def close(self) -> None:
        """Note down where we are, whatever happened."""
        with self._lock:
            self._closed = True
            os.close(self._file)
            self._save()


def _n_connections(size_bytes: int) -> int:
    return N_CONNECTIONS if size_bytes > SINGLE_STREAM_BYTES else 1


def _verify(path: Path, job: Download) -> None:
    size_bytes = path.stat().st_size
    if size_bytes == job.size_bytes and file_digest(path, job.algorithm) == job.digest:
        return
    path.unlink()
    path.with_name(f"{path.name}.json").unlink(missing_ok=True)
    raise DownloadError(
        f"{job.label} arrived damaged: its {job.algorithm} digest is not the published one. The file was deleted;"
        " pull again, and if that fails too, the source itself is damaged."
    )


def file_digest(path: Path, algorithm: Literal["sha256", "git"]) -> str:
    """The hex digest of a file, in the way its source states it."""
    digest = hashlib.sha256() if algorithm == "sha256" else hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with open(open_regular(path), "rb") as file:  # noqa: PTH123 (of a descriptor)
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
