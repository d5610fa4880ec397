"""The database of a folder of state: opened with checks, upgraded, and what its errors mean to people."""

import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tahr.errors import ConfigError

FILE = "state.sqlite3"
APPLICATION = 0x54616872  # tells our databases from others
BUSY_MS = 100  # time that a write waits for another program: the event loop waits with it
# The statements that make each version of the one before, beginning with an empty database.
UPGRADES = (
    (
        "CREATE TABLE responses (id TEXT PRIMARY KEY, owner TEXT NOT NULL, parent TEXT, reply BLOB NOT NULL,"
        " inputs BLOB NOT NULL, outputs BLOB NOT NULL, stored_at REAL NOT NULL, is_listed INTEGER NOT NULL)",
        f"PRAGMA application_id = {APPLICATION}",
    ),
    (
        "CREATE TABLE keys (name TEXT PRIMARY KEY NOT NULL, digest BLOB NOT NULL UNIQUE, created_at REAL NOT NULL,"
        " revoked_at REAL, requests_per_minute INTEGER, tokens_per_day INTEGER, models TEXT NOT NULL)",
        "CREATE TABLE usage (key TEXT NOT NULL, day TEXT NOT NULL, model TEXT NOT NULL, requests INTEGER NOT NULL,"
        " prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,"
        " reasoning_tokens INTEGER NOT NULL, audio_seconds REAL NOT NULL, seconds REAL NOT NULL, joules REAL,"
        " PRIMARY KEY (key, day, model)) WITHOUT ROWID",
        "CREATE INDEX usage_by_day ON usage (day)",
    ),
)
VERSION = len(UPGRADES)
MADE = "SELECT sql, name FROM sqlite_master WHERE sql NOT NULL AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
REASONS = {
    sqlite3.SQLITE_BUSY: "another program is using its database",
    sqlite3.SQLITE_LOCKED: "another program is using its database",
    sqlite3.SQLITE_PERM: "its database may not be written",
    sqlite3.SQLITE_READONLY: "its database may not be written",
    sqlite3.SQLITE_CANTOPEN: "its database cannot be opened",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write it",
    sqlite3.SQLITE_FULL: "the disk is full",
}
Change = tuple[str, tuple[Any, ...]]  # a statement and its values


def opened(path: Path, busy_ms: int = BUSY_MS) -> sqlite3.Connection:
    """The database, checked and of the newest version, or a new one."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    found = os.fstat(descriptor)
    try:
        if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        what = "has another name, too" if stat.S_ISREG(found.st_mode) else "is not a regular file"
        raise ConfigError(f"{path} {what}: name another --state-dir.")
    database = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    try:
        prepare(database, path, busy_ms)
    except BaseException:
        database.close()
        raise
    return database


def place_of(path: Path) -> tuple[int, int]:
    """The file itself, whatever becomes of its name."""
    found = path.stat()
    return found.st_dev, found.st_ino


class MemoryState:
    """A database that ends with the process, in the place of a file. One thread uses it."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        upgrade(self._database)

    def read(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._database.execute(query, values).fetchall()

    def write(self, changes: Sequence[Change]) -> None:
        with transaction(self._database):
            for statement, values in changes:
                self._database.execute(statement, values)


def prepare(database: sqlite3.Connection, path: Path, busy_ms: int) -> None:
    database.execute("BEGIN")  # one look at all three: another program may upgrade it now
    (application,), (version,) = (
        database.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    made = {(*sql.split()[:2], name) for sql, name in database.execute(MADE)}
    is_new = not made
    database.execute("COMMIT")
    if not is_new and application != APPLICATION:
        raise ConfigError(f"{path} is a database of something else: name another --state-dir.")
    if version > VERSION:
        raise ConfigError(f"{path} was written by a newer Tahr: use that, or name another --state-dir.")
    # A view or a trigger would compute for as long as whoever made it wants.
    if version < 0 or made != made_by(version):
        raise sqlite3.DatabaseError("other tables than those of its version")
    database.execute(f"PRAGMA busy_timeout = {busy_ms}")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("PRAGMA wal_autocheckpoint = 0")
    if not is_new and (found := database.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise sqlite3.DatabaseError(found)
    if version < VERSION:
        upgrade(database)


def made_by(version: int) -> set[tuple[str, ...]]:
    """The first three words of what a version has made: `CREATE TABLE keys`."""
    words = [tuple(statement.split()[:3]) for each in UPGRADES[:version] for statement in each]
    return {each for each in words if each[0] == "CREATE"}


def upgrade(database: sqlite3.Connection) -> None:
    """Make the newest version of an older one, or of nothing: all of it, or after a failure none."""
    with transaction(database):
        (version,) = database.execute("PRAGMA user_version").fetchone()  # another program may have been faster
        for statements in UPGRADES[version:]:
            for statement in statements:
                database.execute(statement)
        database.execute(f"PRAGMA user_version = {max(VERSION, version)}")


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All that is written inside is written at once, or after an error not at all."""
    with database:
        database.execute("BEGIN IMMEDIATE")
        yield


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
