"""Batches, as they outlive the process, and which of them are to be worked on."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct, field

from tahr.server.http.errors import HttpError
from tahr.server.kept.folder import Folder

UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")
MOST_BATCHES = 1000
MOST_UNFINISHED = 100  # batches of one key


class BatchError(Struct):
    """A fault of a line, found before the batch is begun, or of the batch."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchTerms(Struct):
    """The wish of a client."""

    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_age_s: int | None = None


class BatchProgress(Struct):
    """Counts of lines, and whether there are files of results to be read."""

    n_lines: int = 0
    n_completed: int = 0
    n_failed: int = 0
    has_output: bool = False
    has_errors: bool = False


class BatchRecord(Struct):
    """A batch. Results are in files of their own, which have ids before anybody sees them."""

    id: str
    owner: str
    salt: str  # keeps its prompts apart in the prefix cache
    terms: BatchTerms
    output_file_id: str
    error_file_id: str
    created_at: float  # exact enough to give them an order
    expires_at: int
    status: str = "validating"
    progress: BatchProgress = field(default_factory=BatchProgress)
    errors: list[BatchError] = field(default_factory=list)
    times: dict[str, int] = field(default_factory=dict)  # time of each status

    @property
    def is_finished(self) -> bool:
        return self.status not in UNFINISHED

    @property
    def file_ids(self) -> tuple[str, str, str]:
        return self.terms.input_file_id, self.output_file_id, self.error_file_id


class BatchStore:
    """Only the event loop's thread uses it. `changed` is set when there may be something to do."""

    def __init__(self, folder: Path, max_age_s: float, clock: Callable[[], float] = time.time):
        self.changed = asyncio.Event()
        self.clock = clock
        self._max_age_s = max_age_s
        self._folder = Folder(folder)
        self._batches = {record.id: record for record in self._folder.load(BatchRecord)}

    @property
    def unfinished(self) -> list[BatchRecord]:
        """The oldest first."""
        found = [each for each in self._batches.values() if not each.is_finished]
        return sorted(found, key=lambda each: (each.created_at, each.id))

    def get(self, owner: str, id: str) -> BatchRecord:
        found = self._batches.get(id)
        if found is None or found.owner != owner:
            message = f"There is no batch {id[:80]!r}: it is too old, or belongs to another key."
            raise HttpError(404, message, param="id", code="batch_not_found")
        return found

    def all_of(self, owner: str) -> list[BatchRecord]:
        """An owner's batches, the oldest first."""
        found = [each for each in self._batches.values() if each.owner == owner]
        return sorted(found, key=lambda each: (each.created_at, each.id))

    def uses(self, file_id: str) -> BatchRecord | None:
        """An unfinished batch that needs a file."""
        return next((each for each in self.unfinished if file_id in each.file_ids), None)

    def add(self, record: BatchRecord) -> None:
        """One more batch; finished ones that are too old, or too many, are forgotten."""
        now = self.clock()
        for each in [each for each in self._batches.values() if each.is_finished]:
            if now - each.created_at > self._max_age_s:
                self._forget(each)
        n_unfinished = sum(each.owner == record.owner for each in self.unfinished)
        if n_unfinished >= MOST_UNFINISHED:
            message = f"{n_unfinished} batches of this key are not finished: wait for one, or cancel it."
            raise HttpError(429, message, code="too_many_batches", headers={"retry-after": "60"})
        if len(self._batches) >= MOST_BATCHES:
            self._forget_one()
        self._folder.write(record.id, record)
        self._batches[record.id] = record
        self.changed.set()

    def enter(self, record: BatchRecord, status: str) -> None:
        """A batch gets another status."""
        times = record.times | {status: int(self.clock())}
        self.save(msgspec.structs.replace(record, status=status, times=times))
        record.status = status
        record.times = times
        self.changed.set()

    def save(self, record: BatchRecord) -> None:
        self._folder.write(record.id, record)

    def _forget_one(self) -> None:
        """The oldest finished one goes, from the owner that has most."""
        counts = Counter(each.owner for each in self._batches.values() if each.is_finished)
        if not counts:
            message = f"{len(self._batches)} batches are not finished, and this server takes no more: try again later."
            raise HttpError(503, message, code="overloaded", headers={"retry-after": "60"})
        owner, _ = counts.most_common(1)[0]
        self._forget(next(each for each in self.all_of(owner) if each.is_finished))

    def _forget(self, record: BatchRecord) -> None:
        del self._batches[record.id]
        self._folder.remove(record.id)
