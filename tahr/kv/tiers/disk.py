"""Pages on a disk: files are read and written on a thread of its own, so that no step waits for a disk.

A disk that fails, or that is full, is given up with one line in the log: no request fails by it.
"""

import errno
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from tahr.kv.tiers.folders import open_below, open_folder
from tahr.kv.tiers.janitor import Bounds, slackened, tidy
from tahr.kv.tiers.page_files import Contents, Damaged, KvFile, read_file, remove, remove_all, write_file
from tahr.kv.tiers.seal import Seal

log = logging.getLogger("tahr.kv")
QUEUED_BYTES = 256 << 20  # limit on pages that wait to be written; others are not kept
MIN_FILE_BYTES = 1 << 20
LEAST_FILES = 8  # files that a directory must hold to be of use
LEAST_TIMED = 1 << 18  # bytes; smaller reads do not tell how quick the disk is
SHARES = 32  # parts of its bounds after each of which a directory is looked at again
CLOSE_S = 5.0  # time that pages still waiting to be written get when the process ends
PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)  # errors of a moment, not of a disk
TOUCH_S = 60.0  # a file that was used less long ago is not marked again


@dataclass(slots=True)
class DiskStats:
    """Counts of what has become of files since the start."""

    n_written: int = 0
    n_read: int = 0
    n_missed: int = 0
    n_damaged: int = 0
    n_late: int = 0
    n_dropped: int = 0  # files not written, because too many waited
    written_bytes: int = 0
    read_bytes: int = 0


@dataclass(eq=False, slots=True)
class FileRead:
    """A file that is being read."""

    which: KvFile
    memory: Contents  # memory for all that it may hold
    found: Contents | None = None  # None, once it has ended: a miss
    is_over: bool = False
    is_damaged: bool = False
    is_cancelled: bool = False


@dataclass(eq=False, slots=True)
class NameLookup:
    """Names of files, of which the first is wanted that is there."""

    names: list[str]
    place: int | None = None  # index of the one that was found
    is_over: bool = False


@dataclass(eq=False, frozen=True, slots=True)
class FileWrite:
    """A file to write."""

    which: KvFile
    contents: Contents


class Job(Protocol):
    """Work for a disk's thread."""

    def __call__(self) -> object: ...


@dataclass(eq=False, slots=True)
class JobQueue:
    """Jobs of a thread: reads go before writes, because somebody waits for them."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    first: deque[Job] = field(default_factory=deque)
    later: deque[Job] = field(default_factory=deque)
    is_closed: bool = False

    def put(self, job: Job, goes_first: bool) -> bool:
        """Queue a job; False if the thread has ended, or is about to."""
        with self.changed:
            if self.is_closed:
                return False
            (self.first if goes_first else self.later).append(job)
            self.changed.notify()
            return True

    def take(self) -> Job | None:
        """Wait for a job; None: there will be no more."""
        with self.changed:
            while not (self.first or self.later or self.is_closed):
                self.changed.wait()
            queue = self.first or self.later
            return queue.popleft() if queue else None

    def close(self) -> None:
        with self.changed:
            self.is_closed = True
            self.changed.notify()


def work_off(jobs: JobQueue) -> None:
    """The thread of a disk. Jobs handle their own errors."""
    while (job := jobs.take()) is not None:
        job()


def close(jobs: JobQueue, thread: threading.Thread, descriptors: Sequence[int]) -> None:
    """Let a thread write what is left, for a while."""
    jobs.close()
    if thread is not threading.current_thread():
        thread.join(CLOSE_S)
    if not thread.is_alive():
        for descriptor in descriptors:
            with suppress(OSError):
                os.close(descriptor)


class DiskTier:
    """Files of one layout in a directory that may hold others, and that other processes may use."""

    def __init__(self, path: Path, layout: bytes, max_bytes: int, seal: Seal | None = None):
        self.path = path
        self.max_bytes = max_bytes
        self.stats = DiskStats()
        self.off = ""  # why nothing is read or written any more
        self.bytes_per_s = 0.0  # rate of reads; 0: not known yet
        self.n_bytes = 0  # bytes in the directory, as far as this process knows
        self.ended = threading.Event()  # set whenever a read has ended
        self._layout = layout
        self._seal = seal
        self._bounds = Bounds(max_bytes, max(64, max_bytes // MIN_FILE_BYTES))
        self._queued: dict[str, FileWrite] = {}  # keys are names
        self._queued_bytes = 0
        self._n_unseen = max_bytes  # bytes written since the last look at the directory, which is due at first
        self._lock = threading.Lock()
        self._root = open_folder(path)
        self._folder = open_below(self._root, layout.hex())
        self._jobs = JobQueue()
        thread = threading.Thread(target=work_off, args=(self._jobs,), name="tahr-kv-disk", daemon=True)
        self.close = weakref.finalize(self, close, self._jobs, thread, (self._folder, self._root))
        thread.start()

    # ---- what others ask for ------------------------------------------------------------------------------------

    def read(self, request: FileRead) -> None:
        """Read a file; `ended` is set when that is over."""
        if not self._jobs.put(partial(self._read, request), goes_first=True):
            request.is_over = True

    def find(self, lookup: NameLookup) -> None:
        """Look for a file; `ended` is set when that is over."""
        if not self._jobs.put(partial(self._find, lookup), goes_first=True):
            lookup.is_over = True

    def write(self, request: FileWrite) -> bool:
        """Write a file, unless it is there already; False if too much waits to be written."""
        n_bytes = request.contents.n_bytes
        name = request.which.name
        with self._lock:
            is_too_much = self._queued_bytes + n_bytes > QUEUED_BYTES or n_bytes > self.max_bytes // LEAST_FILES
            if self.off or is_too_much:
                self.stats.n_dropped += 1
                return False
            if name in self._queued:
                return True
            self._queued[name] = request
            self._queued_bytes += n_bytes
        return self._jobs.put(partial(self._write, request), goes_first=False)

    def remove(self, files: Iterable[str]) -> None:
        """Remove files, and those of these names that wait to be written."""
        names = list(files)
        with self._lock:
            for name in names:
                if request := self._queued.pop(name, None):
                    self._queued_bytes -= request.contents.n_bytes
        self._jobs.put(partial(remove_all, self._folder, names), goes_first=True)

    def flush(self, seconds: float) -> bool:
        """Wait until all that was asked for is done; False if that takes longer."""
        reached = threading.Event()
        return self._jobs.put(reached.set, goes_first=False) and reached.wait(seconds)

    # ---- on the thread ------------------------------------------------------------------------------------------

    def _read(self, request: FileRead) -> None:
        try:
            if not (self.off or request.is_cancelled):
                request.found = self._contents(request)
        except FileNotFoundError:
            self.stats.n_missed += 1
        except Damaged as fault:
            log.warning("A file of keys and values is not used and removed: %s.", fault)
            self._remove_damaged(request)
        except Exception as error:  # the thread and all requests go on, whatever is wrong with a disk
            if isinstance(error, OSError) and error.errno == errno.ELOOP:  # a link in its place
                self._remove_damaged(request)
            else:
                self._give_up(error)
        finally:
            request.is_over = True
            self.ended.set()

    def _remove_damaged(self, request: FileRead) -> None:
        request.is_damaged = True
        self.stats.n_damaged += 1
        remove(self._folder, request.which.name)

    def _find(self, lookup: NameLookup) -> None:
        try:
            for place, name in enumerate(lookup.names):
                if self._is_there(name):
                    lookup.place = place
                    break
        except Exception as error:  # likewise
            self._give_up(error)
        finally:
            lookup.is_over = True
            self.ended.set()

    def _contents(self, request: FileRead) -> Contents:
        began = time.perf_counter()
        found = read_file(self._folder, self._layout, request.which, request.memory, self._seal)
        seconds = time.perf_counter() - began
        n_bytes = found.n_bytes
        if n_bytes >= LEAST_TIMED:
            rate = n_bytes / max(seconds, 1e-9)
            self.bytes_per_s = (3 * self.bytes_per_s + rate) / 4 if self.bytes_per_s else rate
        self.stats.n_read += 1
        self.stats.read_bytes += n_bytes
        self._touch(request.which.name)
        return found

    def _touch(self, name: str) -> None:
        """Mark a file as used now, for whoever removes those used longest ago."""
        with suppress(OSError):
            found = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
            if abs(time.time() - found.st_mtime) > TOUCH_S:
                os.utime(name, dir_fd=self._folder, follow_symlinks=False)

    def _write(self, request: FileWrite) -> None:
        name = request.which.name
        with self._lock:
            if self.off or self._queued.get(name) is not request:
                return
        try:
            if self._is_there(name):
                self._touch(name)
            elif self._fits(request.contents.n_bytes):
                written = write_file(self._folder, self._layout, request.which, request.contents, self._seal)
                self.n_bytes += written
                self._n_unseen += written
                self.stats.n_written += 1
                self.stats.written_bytes += written
        except Exception as error:  # likewise
            self._give_up(error)
        finally:
            with self._lock:
                if self._queued.get(name) is request:
                    del self._queued[name]
                    self._queued_bytes -= request.contents.n_bytes

    def _is_there(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _fits(self, n_bytes: int) -> bool:
        """Whether the directory is within its bounds with one more file. It is looked at from time to time."""
        is_full = self.n_bytes + n_bytes > slackened(self.max_bytes)
        if is_full or self._n_unseen >= self.max_bytes // SHARES:
            left = tidy(self._root, self._bounds)
            if left is not None:
                self.n_bytes = left
                self._n_unseen = 0
        return self.n_bytes + n_bytes <= self.max_bytes

    def _give_up(self, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in PASSING:
            return
        if not self.off:
            self.off = (error.strerror if isinstance(error, OSError) else None) or repr(error)
            log.warning("Keys and values are no longer kept in %s: %s.", self.path, self.off)
