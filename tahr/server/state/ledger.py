"""The ledger of usage: counted when a request ends, kept by day, key and model."""

import logging
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from tahr.engine.sequences.stats import EnergyUse
from tahr.server.http.accounts import Account
from tahr.server.http.errors import HttpError
from tahr.server.http.records import GenerationRecord, RecordingRecord, RequestRecord, SpeechRecord
from tahr.server.observe.observer import Observer
from tahr.server.state.database import Change, reason_of
from tahr.server.state.energy_shares import EnergyShares

log = logging.getLogger("tahr.server")

MAX_DAYS = 400  # days of which usage is kept
MAX_ROWS = 1_000_000
RETRY_S = 10.0  # time between attempts to write after one that failed
DAY_S = 86_400
WAIT_S = 5  # advice for those whose other requests hold what is left


@dataclass(slots=True)
class Use:
    """Tokens, seconds and joules of some requests."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # tokens of the prompts that were in the prefix cache
    output_tokens: int = 0
    reasoning_tokens: int = 0  # part of the output
    audio_seconds: float = 0.0  # length of recordings that were written down
    seconds: float = 0.0  # time that requests took, waiting included
    joules: float | None = None  # None: not measured

    def add(self, other: "Use") -> None:
        for name in FIELDS:
            value = getattr(other, name)
            if value is not None:
                setattr(self, name, (getattr(self, name) or 0) + value)

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in FIELDS)


FIELDS = tuple(field.name for field in fields(Use))
SUMS = ", ".join(f"sum({name})" for name in FIELDS)
ADD = (
    f"INSERT INTO usage (key, day, model, {', '.join(FIELDS)}) VALUES ({', '.join('?' * (3 + len(FIELDS)))})"
    " ON CONFLICT (key, day, model) DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in FIELDS[:-1])
    + ", joules = CASE WHEN excluded.joules IS NULL THEN joules ELSE coalesce(joules, 0) + excluded.joules END"
)
OF_DAY = "SELECT key, sum(prompt_tokens + output_tokens) FROM usage WHERE day = ? GROUP BY key"
OF_KEY = f"SELECT day, model, {SUMS} FROM usage WHERE key = ? AND day >= ? GROUP BY day, model"
DAYS = "SELECT day, count(*) FROM usage GROUP BY day ORDER BY day DESC"


class UsageKey(NamedTuple):
    """A row of the ledger."""

    key: str
    day: str  # midnight to midnight of UTC, such as 2026-11-30
    model: str


class UsageFile(Protocol):
    """The database of the ledger."""

    def read(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]: ...
    def write(self, changes: Sequence[Change]) -> None: ...


class Ledger(Observer):
    """Counts what was used, and lets no key use more than its tokens of a day. Only the event loop's thread uses it.

    What a request may use at most is held while it runs, so that many at once cannot use what only one has left.
    """

    def __init__(self, file: UsageFile, clock: Callable[[], float] = time.time):
        self._file = file
        self._clock = clock
        self._pending: dict[UsageKey, Use] = {}  # not written yet
        self._failed_at: float | None = None
        self._held: Counter[str] = Counter()
        self._today: Counter[str] = Counter()  # tokens that each key has used today
        self._energy: dict[str, EnergyShares[UsageKey]] = {}  # models whose requests have ended
        self._day = ""
        self._begin_day(self.day)

    @property
    def day(self) -> str:
        """Today. A clock that is set back begins no earlier day, whose tokens could be used a second time."""
        return max(self._day, f"{datetime.fromtimestamp(self._clock(), UTC):%Y-%m-%d}")

    # ---- tokens of a day --------------------------------------------------------------------------------------

    def used_today(self, account: Account) -> int:
        self._turn()
        return self._today[account.name]

    def is_used_up(self, account: Account) -> bool:
        """Whether the key may have no more tokens today."""
        return account.tokens_per_day is not None and self.used_today(account) >= account.tokens_per_day

    def hold(self, account: Account, n_tokens: int) -> None:
        """Hold what a request may use; refused with 429 if nothing is left to its key."""
        limit = account.tokens_per_day
        if limit is not None and n_tokens:
            n_used = self.used_today(account)
            if n_used + self._held[account.name] >= limit:
                raise self._refused(limit, n_used)
        self._held[account.name] += n_tokens

    def release(self, account: Account, n_tokens: int) -> None:
        self._held[account.name] -= n_tokens
        if not self._held[account.name]:
            del self._held[account.name]

    def _refused(self, limit: int, n_used: int) -> HttpError:
        if n_used < limit:
            message = f"Requests that run may use all that is left of this key's {limit} tokens a day: wait for one."
            return HttpError(429, message, code="tokens_per_day_held", headers={"retry-after": str(WAIT_S)})
        left_s = math.ceil(DAY_S - self._clock() % DAY_S)
        message = f"This key has used its {limit} tokens of today: wait for tomorrow, {left_s} seconds from now (UTC)."
        headers = {"retry-after": str(left_s), "x-should-retry": "false"}
        return HttpError(429, message, code="tokens_per_day_exceeded", headers=headers)

    # ---- counting ---------------------------------------------------------------------------------------------

    def generation_finished(self, record: GenerationRecord, seconds: float) -> None:
        if record.n_submitted_tokens:
            use = Use(1, record.n_submitted_tokens, record.n_cached, record.n_tokens, record.n_reasoning)
            use.seconds = seconds
            self.count(record.account, record.model, use)

            shares = self._energy.setdefault(record.model, EnergyShares())
            n_prefilled = record.n_submitted_tokens - record.n_cached
            shares.worked(UsageKey(record.account, self._day, record.model), max(0, n_prefilled), record.n_tokens)

    def recording_finished(self, record: RecordingRecord) -> None:
        self.count(record.account, record.model, Use(1, audio_seconds=record.seconds, seconds=record.took_s))

    def speech_finished(self, record: SpeechRecord) -> None:
        self.count(record.account, record.model, Use(1, seconds=record.took_s))

    def request_finished(self, record: RequestRecord) -> None:
        inputs = record.inputs
        if inputs and not 400 <= record.status < 500:
            self.count(inputs.account, inputs.model, Use(1, inputs.n_tokens, seconds=record.ended - record.began))

    def count(self, key: str, model: str, use: Use) -> None:
        self._turn()
        self._today[key] += use.prompt_tokens + use.output_tokens
        self._pending.setdefault(UsageKey(key, self._day, model), Use()).add(use)

    def _turn(self) -> None:
        if self.day != self._day:
            try:
                self._begin_day(self.day)
            except (sqlite3.Error, OSError) as error:
                log.error("The usage of the state cannot be read (%s).", reason_of(error))

    def _begin_day(self, day: str) -> None:
        self._day = day
        self._today = Counter()
        for row, use in self._pending.items():
            self._today[row.key] += (use.prompt_tokens + use.output_tokens) * (row.day == day)
        self._today.update({key: n for key, n in self._file.read(OF_DAY, (day,)) if isinstance(n, int)})
        self._prune()

    def _prune(self) -> None:
        """Forget the oldest days where there are too many, as the days are numbered: clocks may have been wrong."""
        n_rows = 0
        for n_days, (day, n_of_day) in enumerate(self._file.read(DAYS)):
            n_rows += n_of_day
            if n_days >= MAX_DAYS or (n_days and n_rows > MAX_ROWS):
                self._file.write([("DELETE FROM usage WHERE day <= ?", (day,))])
                return

    def share_energy(self, energy_of: Callable[[str], EnergyUse | None]) -> None:
        """Count the joules of each model whose requests have ended, where a device counts them."""
        for model in [name for name, shares in self._energy.items() if shares.has_worked]:
            use = energy_of(model)
            if use is None:
                del self._energy[model]
                continue
            for row, joules in self._energy[model].share(use):
                self._pending.setdefault(row, Use()).add(Use(joules=joules))

    # ---- keeping ----------------------------------------------------------------------------------------------

    def flush(self, at_once: bool = False) -> None:
        """Write what was counted; what cannot be written now is written later."""
        now = time.monotonic()
        if not self._pending or (self._failed_at is not None and now - self._failed_at < RETRY_S and not at_once):
            return
        try:
            self._file.write([(ADD, (*row, *use.values)) for row, use in self._pending.items()])
        except (sqlite3.Error, OSError) as error:
            if self._failed_at is None:
                log.error("The usage cannot be written (%s): it is in memory until it can.", reason_of(error))
            self._failed_at = now
        else:
            self._failed_at = None
            self._pending = {}

    def of(self, account: Account, first_day: str) -> dict[tuple[str, str], Use]:
        """Usage of a key from a day on, by day and model; an sqlite3.Error where that cannot be read."""
        rows = self._file.read(OF_KEY, (account.name, first_day))
        found = {(str(day), str(model)): Use(*values) for day, model, *values in rows}
        for row, use in self._pending.items():
            if row.key == account.name and row.day >= first_day:
                found.setdefault((row.day, row.model), Use()).add(use)
        return dict(sorted(found.items()))


def summed(database: sqlite3.Connection, by: Sequence[str], first_day: str, last_day: str) -> Iterable[tuple[Any, ...]]:
    """Usage of some days, one row for each different value of the columns `by`."""
    columns = ", ".join(by)
    query = f"SELECT {columns}, {SUMS} FROM usage WHERE day BETWEEN ? AND ? GROUP BY {columns} ORDER BY {columns}"
    assert set(by) <= set(UsageKey._fields), "columns come from a table, never from a user"
    return database.execute(query, (first_day, last_day))


def as_facts(use: Use) -> dict[str, Any]:
    """A row as it is shown, with times and energy to a thousandth."""
    values = (round(value, 3) if isinstance(value, float) else value for value in use.values)
    return dict(zip(FIELDS, values, strict=True))
