"""Uploaded files and results of batches, in a folder, with bounds in bytes, counts and ages."""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from tahr.server.http.errors import HttpError
from tahr.server.kept.folder import Folder

MOST_UPLOADS = 16  # uploads at a time: each has memory for the pieces that are written together
FREED_S = 600.0  # time between looks at what has become too old


class FileRecord(Struct):
    """A file, as it outlives the process."""

    id: str
    owner: str
    filename: str
    purpose: str
    n_bytes: int
    created_at: float  # exact enough to give lists an order
    expires_at: int


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Limits of a store."""

    max_file_bytes: int
    max_bytes: int
    max_entries: int
    max_age_s: float


@dataclass
class FileUse:
    """The files of an owner, those that are being written included."""

    n_files: int = 0
    n_bytes: int = 0


@dataclass
class ArrivingFile:
    """A file on its way, which takes its place by and by."""

    id: str
    owner: str
    file: BinaryIO
    n_bytes: int = 0
    unwritten: bytearray = field(default_factory=bytearray)  # one buffer: clients choose how many pieces come


class FileStore:
    """Only the event loop's thread uses it; the bytes of a file are written and read on others.

    A key may have as much as it leaves free, so that none fills the store for the others.
    """

    def __init__(self, folder: Path, limits: FileLimits, clock: Callable[[], float] = time.time):
        self.limits = limits
        self._clock = clock
        self._folder = Folder(folder)
        self._files: dict[str, FileRecord] = {}
        self._used: defaultdict[str, FileUse] = defaultdict(FileUse)
        self._uploads: dict[str, ArrivingFile] = {}
        self._results: dict[str, tuple[str, int]] = {}  # owner and bytes of results that are being written
        self._freed_at = 0.0
        self.is_needed: Callable[[str], bool] = lambda _: False  # whether a batch still reads a file
        there = self._folder.ids_of("data")
        for record in self._folder.load(FileRecord):
            if record.id in there:
                self._insert(record)

    def clean(self, results: Iterable[str]) -> None:
        """Remove what an earlier process has left half done, but for results that are still written."""
        left = set[str]().union(*map(self._folder.ids_of, ("new", "tmp", "data")))
        for id in left - self._folder.ids_of("json") - {*results}:
            self._folder.remove(id)

    # ---- what is there ------------------------------------------------------------------------------------------

    def get(self, owner: str, id: str) -> FileRecord:
        self._free()
        found = self._files.get(id)
        if found is None or found.owner != owner:
            message = f"There is no file {id[:80]!r}: it was deleted, is too old, or belongs to another key."
            raise HttpError(404, message, param="id", code="file_not_found")
        return found

    def all_of(self, owner: str) -> list[FileRecord]:
        """An owner's files, the oldest first."""
        self._free()
        found = [each for each in self._files.values() if each.owner == owner]
        return sorted(found, key=lambda each: (each.created_at, each.id))

    def data_path(self, id: str) -> Path:
        """Where the bytes of a file are."""
        return self._folder.place(id, "data")

    # ---- changing it --------------------------------------------------------------------------------------------

    def begin(self, owner: str) -> ArrivingFile:
        """A new file, to be written."""
        n_own = sum(each.owner == owner for each in self._uploads.values())
        if n_own >= max(1, MOST_UPLOADS - len(self._uploads)) or len(self._uploads) >= MOST_UPLOADS:
            what = f"{n_own} files of this key are on their way, of {len(self._uploads)}"
            message = f"{what}, and one key may have as many as it leaves free of {MOST_UPLOADS}: try again later."
            raise HttpError(503, message, code="overloaded", headers={"retry-after": "5", "connection": "close"})
        self._check_entries(owner)
        id = new_id("file-")
        upload = self._uploads[id] = ArrivingFile(id, owner, self._folder.create(id, "tmp"))
        self._used[owner].n_files += 1
        return upload

    def grow(self, upload: ArrivingFile, n_bytes: int) -> None:
        """Count the next bytes of a file; refused where it has too many, or all together."""
        most = self.limits.max_file_bytes
        if upload.n_bytes + n_bytes > most:
            message = f"The file is larger than the {most} bytes this server takes: send several (--file-max-bytes)."
            raise HttpError(413, message, param="file", code="file_too_large", headers={"connection": "close"})
        self._count(upload.owner, n_bytes)
        upload.n_bytes += n_bytes

    def end(self, upload: ArrivingFile, record: FileRecord) -> None:
        """A file is complete."""
        upload.file.close()
        self._folder.place(upload.id, "tmp").replace(self.data_path(upload.id))
        self._folder.write(upload.id, record)
        self._forget(upload)
        self._insert(record)

    def discard(self, upload: ArrivingFile) -> None:
        """A file will not be complete; does nothing if it is."""
        if upload.id in self._uploads:
            self._forget(upload)
            with suppress(OSError):  # a full disk takes no last bytes either
                upload.file.close()
            self._folder.remove(upload.id)

    def remove(self, id: str) -> None:
        record = self._files.pop(id)
        used = self._used[record.owner]
        used.n_files -= 1
        used.n_bytes -= record.n_bytes
        self._folder.remove(id)

    # ---- results ------------------------------------------------------------------------------------------------

    def result_grew(self, id: str, owner: str, n_bytes: int) -> None:
        """Count the bytes of results that a batch still writes; refused where all together are too many."""
        _, n_before = self._results.get(id, (owner, 0))
        self._count(owner, n_bytes - n_before)
        self._results[id] = owner, n_bytes

    def end_result(self, record: FileRecord) -> None:
        """Results are complete, and a file as any other."""
        self.forget_result(record.id)
        self._folder.write(record.id, record)
        if record.id in self._files:
            return
        self._insert(record)

    def forget_result(self, id: str) -> None:
        owner, n_bytes = self._results.pop(id, ("", 0))
        self._used[owner].n_bytes -= n_bytes

    def remove_result(self, id: str) -> None:
        """No line was written."""
        self.forget_result(id)
        self._folder.remove(id)

    # ---- limits -------------------------------------------------------------------------------------------------

    def record(self, id: str, owner: str, filename: str, purpose: str, n_bytes: int, age_s: float | None) -> FileRecord:
        """A record of a file that is made now; it is kept for `age_s`, or as long as the server keeps any."""
        now = self._clock()
        kept_s = min(self.limits.max_age_s, self.limits.max_age_s if age_s is None else age_s)
        return FileRecord(id, owner, filename, purpose, n_bytes, now, int(now) + int(kept_s))

    def _insert(self, record: FileRecord) -> None:
        self._files[record.id] = record
        used = self._used[record.owner]
        used.n_files += 1
        used.n_bytes += record.n_bytes

    def _forget(self, upload: ArrivingFile) -> None:
        del self._uploads[upload.id]
        used = self._used[upload.owner]
        used.n_files -= 1
        used.n_bytes -= upload.n_bytes

    def _check_entries(self, owner: str) -> None:
        self._free()
        n_all = sum(each.n_files for each in self._used.values())
        if n_all + self._used[owner].n_files >= self.limits.max_entries:
            what = f"There are {self._used[owner].n_files} files of this key, and it may have as many as it leaves free"
            message = f"{what} of {self.limits.max_entries} (--file-store-max-entries): delete some."
            raise HttpError(413, message, code="file_store_full", headers={"connection": "close"})

    def _count(self, owner: str, n_bytes: int) -> None:
        n_all = sum(each.n_bytes for each in self._used.values())
        if n_bytes > 0 and n_all + self._used[owner].n_bytes + 2 * n_bytes > self.limits.max_bytes:
            what = f"The files of this key have {self._used[owner].n_bytes} bytes, and it may have as many as it leaves"
            message = f"{what} free of {self.limits.max_bytes} (--file-store-max-bytes): delete some."
            raise HttpError(413, message, code="file_store_full", headers={"connection": "close"})
        self._used[owner].n_bytes += n_bytes

    def _free(self) -> None:
        """Remove what is too old; a clock that is set back makes nothing too old."""
        now = self._clock()
        if 0 <= now - self._freed_at < FREED_S:
            return
        self._freed_at = now
        for record in [each for each in self._files.values() if each.expires_at <= now]:
            if not self.is_needed(record.id):
                self.remove(record.id)


def new_id(prefix: str) -> str:
    """No secret: who may see what is a matter of keys."""
    return f"{prefix}{random.getrandbits(128):032x}"
