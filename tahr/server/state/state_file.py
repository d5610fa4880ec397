"""A folder where a server keeps what is to outlive it: stored responses, in a database of SQLite."""

import fcntl
import logging
import math
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec

from tahr.errors import ConfigError
from tahr.server.conversations.store import KeptResponse, StoredItem, StoredItems, StoredResponse

log = logging.getLogger("tahr.server")

FILE = "state.sqlite3"
LOCK = "state.lock"
APPLICATION = 0x54616872  # tells our databases from others
VERSION = 1
RETRY_S = 10.0  # time between attempts to write after one that failed
BUSY_MS = 100  # time that a write waits for another program: the event loop waits with it
CHECKPOINT_BYTES = 4 << 20  # bytes written between two checkpoints
LOG_BYTES = 64 << 20  # longest log: where checkpoints do not keep up, commits wait for one
SCHEMA = (
    "CREATE TABLE responses (id TEXT PRIMARY KEY, owner TEXT NOT NULL, parent TEXT, reply BLOB NOT NULL,"
    " inputs BLOB NOT NULL, outputs BLOB NOT NULL, stored_at REAL NOT NULL, is_listed INTEGER NOT NULL)",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)
SIZES = "SELECT rowid, length(reply) + length(inputs) + length(outputs) FROM responses ORDER BY rowid DESC"
REASONS = {
    sqlite3.SQLITE_BUSY: "another program is using its database",
    sqlite3.SQLITE_LOCKED: "another program is using its database",
    sqlite3.SQLITE_PERM: "its database may not be written",
    sqlite3.SQLITE_READONLY: "its database may not be written",
    sqlite3.SQLITE_CANTOPEN: "its database cannot be opened",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write it",
    sqlite3.SQLITE_FULL: "the disk is full",
}
ITEMS = msgspec.msgpack.Decoder(list[StoredItem])
Change = tuple[str, tuple[Any, ...]]  # a statement and its values


class StateFile:
    """The state of one server. The store that writes it holds its own lock meanwhile.

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
        except (sqlite3.Error, OSError) as error:
            self._lock.close()
            raise unusable(folder, error) from None
        except BaseException:
            self._lock.close()
            raise
        self._due = threading.Event()
        self._checkpointing = threading.Lock()
        self._is_closing = False
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
        except (sqlite3.Error, msgspec.MsgspecError, TypeError, ValueError) as error:
            self.close()
            raise unusable(self._path.parent, error) from None
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
        before, after = (StoredItems(ITEMS.decode(data)) for data in (inputs, outputs))
        age_s = max(0.0, self._clock() - float(stored_at))  # a clock that was set back makes nothing younger than new
        return KeptResponse(str(owner), StoredResponse(str(id), reply, before, after), bool(is_listed), age_s)

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

    def _write(self, changes: list[Change]) -> None:
        with self._database:
            self._database.execute("BEGIN")
            for statement, values in changes:
                self._database.execute(statement, values)
                self._n_written_bytes += sum(len(each) for each in values if isinstance(each, bytes))
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


def opened(path: Path) -> sqlite3.Connection:
    """The database, checked, or a new one."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    found = os.fstat(descriptor)
    os.close(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        what = "has another name, too" if stat.S_ISREG(found.st_mode) else "is not a regular file"
        raise ConfigError(f"{path} {what}: name another --state-dir.")
    database = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    try:
        prepare(database, path)
    except BaseException:
        database.close()
        raise
    return database


def prepare(database: sqlite3.Connection, path: Path) -> None:
    (application,), (version,) = (
        database.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    is_new = not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not is_new and application != APPLICATION:
        raise ConfigError(f"{path} is a database of something else: name another --state-dir.")
    if version > VERSION:
        raise ConfigError(f"{path} was written by a newer Tahr: use that, or name another --state-dir.")
    database.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("PRAGMA wal_autocheckpoint = 0")
    if is_new:
        for statement in SCHEMA:
            database.execute(statement)
    elif (found := database.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise sqlite3.DatabaseError(found)


def unusable(folder: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"The state in {folder} cannot be used ({reason_of(error)}): "
        "restore it from a copy, move it away, or name another --state-dir."
    )


def reason_of(error: Exception) -> str:
    """The reason why a database cannot be used, without the words of the library that found it."""
    if isinstance(error, OSError):
        return error.strerror or "its database cannot be opened"
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return REASONS.get(code & 0xFF, "its database is damaged")
