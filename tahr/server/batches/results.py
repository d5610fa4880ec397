"""Files of results: one for replies, one for errors, to which each line is written once, however often a run ends."""

import fcntl
import logging
import os
import re
import stat
from array import array
from itertools import combinations
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Raw, Struct

from tahr.errors import ConfigError
from tahr.server.batches.lines import MAX_LINES, InputLine
from tahr.server.bodies.decoding import MALFORMED

log = logging.getLogger("tahr.server")

# A line of results names the line of requests by its number and digest, so that a later run knows which are done.
ID = re.compile(r"batch_req_(\d{1,7})_([0-9a-f]{16})")
START = b'{"id":"batch_req_'
MAX_RESULT_BYTES = 1 << 28  # longest line that is read again
FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class BatchResponse(Struct):
    """The answer that a server would have given."""

    status_code: int
    request_id: str
    body: Raw


class BatchFault(Struct):
    """Why there is no response."""

    code: str
    message: str


class BatchResult(Struct):
    """A line of results."""

    id: str
    custom_id: str | None
    response: BatchResponse | None = None
    error: BatchFault | None = None

    @property
    def is_reply(self) -> bool:
        return self.response is not None and self.response.status_code == 200


class Identified(Struct):
    """The part of a line of results that a later run needs."""

    id: str


def result_id(line: InputLine) -> str:
    return f"batch_req_{line.number}_{line.digest:016x}"


class ResultFiles:
    """Both files, locked until they are closed, and the digests of the lines that are done."""

    def __init__(self, replies: Path, errors: Path, requests: BinaryIO, mode: int = 0o666):
        self._done = array("Q")  # digests by number; 0: not done
        self.n_replies = self.n_errors = 0  # results, those of earlier runs included
        self._failure: OSError | None = None
        self._replies = open_results(replies, mode)
        self._errors = open_results(errors, mode)
        stats = [os.fstat(file.fileno()) for file in (self._replies, self._errors, requests)]
        if any(os.path.samestat(a, b) for a, b in combinations(stats, 2)):
            raise ConfigError("Requests, replies and errors are not three files: name others for the results.")
        lock(replies, self._replies)
        lock(errors, self._errors)
        self.n_replies = self._read_done(replies, self._replies)
        self.n_errors = self._read_done(errors, self._errors)
        self.n_done = self.n_replies + self.n_errors

    def is_done(self, line: InputLine) -> bool:
        """Whether an earlier run has written a result for it."""
        digest = self._done[line.number] if line.number < len(self._done) else 0
        if digest and digest != line.digest:
            raise ConfigError(
                f"Line {line.number} is not the one that these results were written for: "
                "name other files for the results, or give the same requests."
            )
        return bool(digest)

    def write(self, result: BatchResult) -> None:
        """Append a result; the system has it when this returns. After one that failed there are no more."""
        file = self._replies if result.is_reply else self._errors
        if self._failure:
            raise self._failure
        try:
            append(file, msgspec.json.encode(result) + b"\n")
        except OSError as error:
            self._failure = error  # another line would stand behind a part of this one
            raise
        self.n_replies += result.is_reply
        self.n_errors += not result.is_reply

    @property
    def n_bytes(self) -> tuple[int, int]:
        """Bytes of replies and of errors."""
        return os.fstat(self._replies.fileno()).st_size, os.fstat(self._errors.fileno()).st_size

    def close(self) -> None:
        self._replies.close()
        self._errors.close()

    def _read_done(self, path: Path, file: BinaryIO) -> int:
        """Take over whole lines, and count them; a line that was cut short by the end of a process is cut off."""
        file.seek(0)
        end = n_new = 0
        while data := file.readline(MAX_RESULT_BYTES):
            if not data.endswith(b"\n"):
                break
            n_new += self._take(path, data)
            end += len(data)
        if data:
            if not (data.startswith(START) or START.startswith(data)):
                raise not_ours(path)
            file.truncate(end)
        return n_new

    def _take(self, path: Path, data: bytes) -> bool:
        """Whether it is the first result of its line."""
        try:
            found = ID.fullmatch(msgspec.json.decode(data, type=Identified).id)
        except MALFORMED:
            found = None
        number = int(found[1]) if found else 0
        if not found or not 0 < number <= MAX_LINES:
            raise not_ours(path)
        self._done.extend([0] * (number + 1 - len(self._done)))
        is_new = not self._done[number]
        self._done[number] = int(found[2], 16)
        return is_new


def not_ours(path: Path) -> ConfigError:
    return ConfigError(f"{path} has lines that no batch of Tahr wrote, and is left as it is: name another file.")


def append(file: BinaryIO, data: bytes) -> None:
    """Write without a buffer, in which a full disk would leave bytes that nobody expects."""
    left = memoryview(data)
    while left:
        left = left[os.write(file.fileno(), left) :]


def open_results(path: Path, mode: int = 0o666) -> BinaryIO:
    """A file to append to, made if there is none."""
    descriptor = os.open(path, FLAGS, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(f"{path} is not a regular file: name one for the results.")
    return os.fdopen(descriptor, "r+b")


def lock(path: Path, file: BinaryIO) -> None:
    """Keep the file from other processes until it is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"Another process is writing {path}: wait for it, or name another file.") from None
    except OSError as error:
        log.warning("%s is on a file system without locks (%s): let no other process write it.", path, error.strerror)
