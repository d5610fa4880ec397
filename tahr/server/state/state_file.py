"""A folder where a server keeps what is to outlive it: stored responses, keys and usage, in a database of SQLite."""

import errno
import fcntl
import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec

from tahr.errors import ConfigError
from tahr.server.conversations.store import KeptResponse, StoredItem, StoredItems, StoredResponse
from tahr.server.state.database import FILE, Change, opened, place_of, reason_of, transaction, unusable

log = logging.getLogger("tahr.server")

LOCK = "state.lock"
RETRY_S = 10.0  # time between attempts to write after one that failed
CHECKPOINT_BYTES = 4 << 20  # bytes written between two checkpoints
PAGE_BYTES = 4096  # least growth of the log with each change
LOG_BYTES = 64 << 20  # longest log: where checkpoints do not keep up, commits wait for one
SIZES = "SELECT rowid, length(reply) + length(inputs) + length(outputs) FROM responses ORDER BY rowid DESC"
ITEMS = msgspec.msgpack.Decoder(list[StoredItem])


class StateFile:
    """The state of one server. The store of responses holds its own lock while it writes; others use the file's.

    A commit has reached the system, not yet the disk: it outlives the process, and the machine after a checkpoint,
    which a thread makes. A commit that fails loses nothing in memory; the next that succeeds writes everything.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time):
        self._clock = clock
        self._changes: list[Change] = []
        self._failed_at: float | None = None
        self._n_written_bytes = 0
        self._lock = lock_of(folder)
        self._path = folder / FILE
        try:
            self._database = opened(self._path)
            self._place = place_of(self._path)
        except (sqlite3.Error, OSError) as error:
            self._lock.close()
            raise unusable(folder, error) from None
        except BaseException:
            self._lock.close()
            raise
        self._due = threading.Event()
        self._checkpointing = threading.Lock()
        self._is_closing = False
        self._using = threading.Lock()  # the database, in which one transaction runs at a time
        self._thread = threading.Thread(target=self._checkpoint, name="tahr-state", daemon=True)
        self._thread.start()

    # ---- reading ----------------------------------------------------------------------------------------------

    def load(self, max_bytes: int) -> list[KeptResponse]:
        """All responses, the oldest first; these are deleted where all are more than `max_bytes`."""
        try:
            self._trim(max_bytes)
            rows = self._database.execute("SELECT * FROM responses ORDER BY rowid").fetchall()
            made = {row[0]: self._response_of(row) for row in rows}
            found = linked(made, {row[0]: row[2] for row in rows})
            lost = made.keys() - {kept.response.id for kept in found}
            self._write([("DELETE FROM responses WHERE id = ?", (id,)) for id in lost])
        except (sqlite3.Error, OSError, msgspec.MsgspecError, TypeError, ValueError) as error:
            raise self.refused(error) from None
        return found

    def _trim(self, max_bytes: int) -> None:
        n_bytes = 0
        for number, size in self._database.execute(SIZES):
            n_bytes += size
            if n_bytes > max_bytes:
                self._database.execute("DELETE FROM responses WHERE rowid <= ?", (number,))
                break

    def _response_of(self, row: tuple[Any, ...]) -> KeptResponse:
        id, owner, _, reply, inputs, outputs, stored_at, is_listed = row
        if not isinstance(reply, bytes):
            raise ValueError("a reply is no bytes")
        msgspec.json.decode(reply, type=dict[str, Any])
        before, after = (StoredItems(ITEMS.decode(data)) for data in (inputs, outputs))
        age_s = max(0.0, self._clock() - float(stored_at))  # a clock that was set back makes nothing younger than new
        return KeptResponse(str(owner), StoredResponse(str(id), reply, before, after), bool(is_listed), age_s)

    def refused(self, error: Exception) -> ConfigError:
        """The error of a server that does not start because of what it has read here."""
        self.close()
        return unusable(self._path.parent, error)

    # ---- keys and usage ---------------------------------------------------------------------------------------

    def read(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query; an sqlite3.Error where they cannot be read."""
        with self._using:
            return self._database.execute(query, values).fetchall()

    def write(self, changes: Sequence[Change]) -> None:
        """All of the changes; an sqlite3.Error or OSError where they cannot be written, and then none."""
        self._write(changes)

    def edition(self) -> int:
        """A number that changes when another program has written to the database."""
        number: int = self.read("PRAGMA data_version")[0][0]
        return number

    # ---- writing ----------------------------------------------------------------------------------------------

    def put(self, kept: KeptResponse) -> None:
        """Write a response with the next commit, whether it was written before or not."""
        response = kept.response
        items = [msgspec.msgpack.encode(each.items) for each in (response.inputs, response.outputs)]
        parent = response.parent.id if response.parent else None
        stored_at = self._clock() - kept.age_s
        values = (response.id, kept.owner, parent, response.reply, *items, stored_at, kept.is_listed)
        self._changes.append((f"INSERT OR REPLACE INTO responses VALUES ({', '.join('?' * len(values))})", values))

    def hide(self, id: str) -> None:
        """A response is no longer listed, but others follow from it."""
        self._changes.append(("UPDATE responses SET is_listed = 0 WHERE id = ?", (id,)))

    def forget(self, id: str) -> None:
        self._changes.append(("DELETE FROM responses WHERE id = ?", (id,)))

    def commit(self, everything: Callable[[], Iterable[KeptResponse]]) -> None:
        """Write the changes, or after a failure all there is."""
        now = time.monotonic()
        if self._failed_at is not None:
            self._changes = []
            if now - self._failed_at < RETRY_S:
                return
            self._changes.append(("DELETE FROM responses", ()))
            for kept in everything():
                self.put(kept)
        try:
            self._write(self._changes)
        except (sqlite3.Error, OSError) as error:
            if self._failed_at is None:
                reason = reason_of(error)
                log.error("The state cannot be written (%s): responses are in memory alone until it can.", reason)
            self._failed_at = now
        else:
            self._failed_at = None
        self._changes = []

    def retry(self, everything: Callable[[], Iterable[KeptResponse]], at_once: bool = False) -> None:
        """Write everything if the last commit failed, and if that was long enough ago."""
        if self._failed_at is None:
            return
        if at_once:
            self._failed_at = -math.inf
        self.commit(everything)

    def _write(self, changes: Sequence[Change]) -> None:
        if changes:
            with self._using:
                self._commit_all(changes)

    def _commit_all(self, changes: Sequence[Change]) -> None:
        # A file without a name takes writes that no later server finds.
        if place_of(self._path) != self._place:
            raise FileNotFoundError(errno.ENOENT, "its database was replaced")
        with transaction(self._database):
            for statement, values in changes:
                self._database.execute(statement, values)
                self._n_written_bytes += max(PAGE_BYTES, sum(len(each) for each in values if isinstance(each, bytes)))
        if self._n_written_bytes > CHECKPOINT_BYTES:
            self._n_written_bytes = 0
            # Where the log was deleted, a checkpoint would make a new one, and nobody would hear of it.
            n_log_bytes = self._path.with_name(f"{FILE}-wal").stat().st_size
            self._due.set()
            if n_log_bytes > LOG_BYTES:
                with self._checkpointing:
                    self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _checkpoint(self) -> None:
        """Bring what was written to the disk, which may take long, on a connection of its own."""
        while self._due.wait() and not self._is_closing:
            self._due.clear()
            with self._checkpointing, suppress(sqlite3.Error), closing(sqlite3.connect(self._path)) as database:
                database.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Write everything to the disk, and let another server have it."""
        self._is_closing = True
        self._due.set()
        self._thread.join()
        with suppress(sqlite3.Error):
            self._database.close()
        self._lock.close()


def linked(made: dict[str, KeptResponse], parents: dict[str, str | None]) -> list[KeptResponse]:
    """Responses whose ancestors are all there, in the order of their rows."""
    whole: set[str] = set()
    following: dict[str, list[str]] = {}
    for id, parent in parents.items():
        following.setdefault(parent or "", []).append(id)
    reached = following.get("", [])
    while reached:
        id = reached.pop()
        whole.add(id)
        for child in following.get(id, ()):
            if made[child].owner == made[id].owner:
                made[child].response.parent = made[id].response
                reached.append(child)
    return [kept for id, kept in made.items() if id in whole]


def lock_of(folder: Path) -> Any:
    """The lock of a folder, which is made where there is none; others than its owner cannot read it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(
            f"The state cannot be kept in {folder}: {error.strerror}. Name another --state-dir."
        ) from None
    file = os.fdopen(descriptor, "rb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(f"Another server keeps its state in {folder}: name another --state-dir.") from None
    except OSError as error:  # without a lock two servers would write one file
        file.close()
        raise ConfigError(f"The file system of {folder} has no locks ({error.strerror}): name another.") from None
    return file
