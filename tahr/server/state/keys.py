"""Keys in the state: made, listed and revoked by a command, and read by a server while it runs."""

import json
import logging
import secrets
import sqlite3
import unicodedata
from typing import Any, NamedTuple

from tahr.errors import ConfigError
from tahr.server.http.accounts import Account, KeyRing, digest_of
from tahr.server.state.database import reason_of, transaction
from tahr.server.state.state_file import StateFile

log = logging.getLogger("tahr.server")

MAX_KEYS = 100_000  # good and revoked ones
MAX_NAME_CHARS = 64
MAX_MODELS = 100  # models that one key may be limited to
MAX_LIMIT = 10**15
PREFIX = "sk-tahr-"
N_SECRET_BYTES = 32
MARKS = frozenset("._-@/ ")  # allowed in names besides letters and digits
COLUMNS = "name, digest, created_at, revoked_at, requests_per_minute, tokens_per_day, models"
QUERY = f"SELECT {COLUMNS} FROM keys ORDER BY created_at, name LIMIT {MAX_KEYS}"


class KeyRow(NamedTuple):
    """A key as the database has it, edited by hand maybe, so that any value may have any type."""

    name: Any
    digest: Any
    created_at: Any
    revoked_at: Any
    requests_per_minute: Any
    tokens_per_day: Any
    models: Any

    @property
    def is_revoked(self) -> bool:
        return self.revoked_at is not None

    def account(self) -> Account | None:
        """The key's account; None if the row is none that we have written."""
        limits = (self.requests_per_minute, self.tokens_per_day)
        models = models_in(self.models)
        is_whole = (
            isinstance(self.name, str)
            and not wrong_in(self.name)
            and isinstance(self.digest, bytes)
            and len(self.digest) == len(digest_of(""))
            and all(limit is None or (isinstance(limit, int) and 1 <= limit <= MAX_LIMIT) for limit in limits)
        )
        return Account(self.name, self.digest, *limits, models) if is_whole and models is not None else None


def models_in(text: Any) -> tuple[str, ...] | None:
    try:
        models = json.loads(text) if isinstance(text, str) and len(text) <= 1 << 16 else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(models, list) or not all(isinstance(each, str) and each for each in models):
        return None
    return tuple(models)


def wrong_in(name: str) -> str:
    """The fault of a name for a key; empty: it has none. Names stand in tables, logs and files of other programs."""
    if not 1 <= len(name) <= MAX_NAME_CHARS:
        return f"must have 1 to {MAX_NAME_CHARS} characters"
    if not name[0].isalnum() or name[-1] == " ":
        return "must begin with a letter or a digit, and not end with a space"
    if odd := next((each for each in name if not (each.isalnum() or each in MARKS)), ""):
        return f"has the character {odd!r}: take letters, digits, spaces and ._-@/"
    if unicodedata.normalize("NFC", name) != name:
        return "has letters made of parts (it is not in the form NFC): write it as one would type it"
    return ""


# ---- by a command -------------------------------------------------------------------------------------------


def key_rows(database: sqlite3.Connection) -> list[KeyRow]:
    """All keys, the oldest first."""
    return [KeyRow(*row) for row in database.execute(QUERY)]


def add_key(database: sqlite3.Connection, wanted: Account, now: float) -> str:
    """Add a key, and return it: it is nowhere else. The name of a revoked one may be used again."""
    if wrong := wrong_in(wanted.name):
        raise ConfigError(f"The name {wanted.name[:MAX_NAME_CHARS]!r} {wrong}.")
    if len(wanted.models) > MAX_MODELS:
        raise ConfigError(f"A key may be limited to {MAX_MODELS} models at most: name fewer.")
    secret = PREFIX + secrets.token_urlsafe(N_SECRET_BYTES)
    models = json.dumps(wanted.models)
    row = (wanted.name, digest_of(secret), now, None, wanted.requests_per_minute, wanted.tokens_per_day, models)
    with transaction(database):
        (n_keys,) = database.execute("SELECT count(*) FROM keys").fetchone()
        found = database.execute("SELECT revoked_at FROM keys WHERE name = ?", (wanted.name,)).fetchone()
        if found and found[0] is None:
            raise ConfigError(f"There is a key {wanted.name!r} already: revoke it first, or take another name.")
        if not found and n_keys >= MAX_KEYS:
            raise ConfigError(f"The state has {MAX_KEYS} keys, the most it may hold: use the name of a revoked one.")
        database.execute(f"INSERT OR REPLACE INTO keys ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    return secret


def revoke_key(database: sqlite3.Connection, name: str, now: float) -> None:
    """Its row stays, so that a server with no other key does not become open to everyone."""
    with transaction(database):
        found = database.execute("SELECT revoked_at FROM keys WHERE name = ?", (name,)).fetchone()
        if not found:
            raise ConfigError(f"There is no key {name[:MAX_NAME_CHARS]!r}: `tahr keys list` shows those there are.")
        if found[0] is not None:
            raise ConfigError(f"The key {name!r} was revoked before: nothing is left to do.")
        database.execute("UPDATE keys SET revoked_at = ? WHERE name = ?", (now, name))


# ---- by a server --------------------------------------------------------------------------------------------


class StoredKeys:
    """Gives a running server the keys of its state, whoever changes them."""

    def __init__(self, file: StateFile, ring: KeyRing):
        self._file = file
        self._ring = ring
        self._edition = -1
        self._rows: list[tuple[Any, ...]] = []
        self._has_failed = False
        try:
            self._read()
        except sqlite3.Error as error:
            raise file.refused(error) from None

    def look(self) -> bool:
        """Read the keys again if the database has changed; whether they have. If they cannot be read, they stay."""
        try:
            has_changed = self._read()
        except sqlite3.Error as error:
            if not self._has_failed:
                log.error("The keys of the state cannot be read (%s): they stay as they were.", reason_of(error))
            self._has_failed = True
            return False
        self._has_failed = False
        return has_changed

    def _read(self) -> bool:
        edition = self._file.edition()
        if edition == self._edition:
            return False
        rows = self._file.read(QUERY)
        self._edition = edition
        if rows == self._rows:
            return False
        self._rows = rows
        good = [key for row in rows if not (key := KeyRow(*row)).is_revoked]
        accounts = [key.account() for key in good]
        damaged = [repr(key.name)[:80] for key, account in zip(good, accounts, strict=True) if account is None]
        if damaged:
            log.error("%d keys of the state are damaged, and not taken: %s", len(damaged), ", ".join(damaged[:8]))
        self._ring.put(filter(None, accounts), len(rows))
        log.info("keys good=%d", len(self._ring))
        return True
