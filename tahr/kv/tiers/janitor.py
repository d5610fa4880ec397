"""Keeps a directory of keys and values within its bounds. Several processes may share it: one of them at a time tidies.

Only names that we give are looked at and removed: whatever else somebody put there stays.
"""

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tahr.errors import ConfigError
from tahr.kv.tiers.folders import OPEN_FOLDER
from tahr.kv.tiers.page_files import RUN, STATE, UNFINISHED, remove

LOCK = "lock"
FOLDER = re.compile(r"[0-9a-f]{32}")
FILE = re.compile(rf"[0-9a-f]{{32}}({re.escape(RUN)}|{re.escape(STATE)})(\.\d+\.\d+{re.escape(UNFINISHED)})?")
STALE_S = 600.0  # age, whatever the clock did, of an unfinished file that nobody writes to any more
KEPT = 7 / 8  # share of the bounds that is left where they were reached


class Bounds(NamedTuple):
    """The most that a directory may hold."""

    n_bytes: int
    n_files: int


class FoundFile(NamedTuple):
    """A file of some layout: where it is, when it was used last, and its size."""

    folder: str
    name: str
    used_at: float
    n_bytes: int


@contextmanager
def alone(root: int) -> Iterator[bool]:
    """Within, whether no other process tidies; never waits."""
    descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=root)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def files_in(root: int) -> list[FoundFile]:
    """All files of keys and values, of whatever layout, finished or not."""
    with os.scandir(root) as entries:
        folders = [each.name for each in entries if FOLDER.fullmatch(each.name)]
    found: list[FoundFile] = []
    for name in folders:
        try:
            folder = os.open(name, OPEN_FOLDER, dir_fd=root)
        except OSError:
            continue  # a link, or gone
        try:
            found += files_of(folder, name)
        finally:
            os.close(folder)
    return found


def files_of(folder: int, name: str) -> Iterator[FoundFile]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if FILE.fullmatch(entry.name):
                try:
                    facts = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # gone meanwhile
                if stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode):
                    yield FoundFile(name, entry.name, facts.st_mtime, facts.st_size)


def tidy(root: int, bounds: Bounds) -> int | None:
    """Remove what was used longest ago, if the directory is nearly full; the bytes that are left.

    None: another process is doing that.
    """
    with alone(root) as is_alone:
        if not is_alone:
            return None
        now = time.time()
        files = sorted(files_in(root), key=lambda file: file.used_at)
        doomed = [file for file in files if file.name.endswith(UNFINISHED) and abs(now - file.used_at) > STALE_S]
        n_bytes = sum(file.n_bytes for file in files) - sum(file.n_bytes for file in doomed)
        n_files = len(files) - len(doomed)
        if n_bytes > slackened(bounds.n_bytes) or n_files > slackened(bounds.n_files):
            for file in files:
                if n_bytes <= KEPT * bounds.n_bytes and n_files <= KEPT * bounds.n_files:
                    break
                if file.name.endswith(UNFINISHED):
                    continue  # somebody writes to it
                doomed.append(file)
                n_bytes -= file.n_bytes
                n_files -= 1
        remove_files(root, doomed)
        return n_bytes


def slackened(most: int) -> int:
    """The number from which on something is removed."""
    return most - most // 16


def remove_files(root: int, files: list[FoundFile]) -> None:
    """Remove files; their folders stay, because a server may have them open."""
    for name in {file.folder for file in files}:
        try:
            folder = os.open(name, OPEN_FOLDER, dir_fd=root)
        except OSError:
            continue
        for file in files:
            if file.folder == name:
                remove(folder, file.name)
        os.close(folder)


def look_at(path: Path, clear: bool = False) -> list[FoundFile]:
    """The files of a directory that is there, which are removed if they are to be."""
    try:
        root = os.open(path, OPEN_FOLDER)
    except OSError as error:
        raise ConfigError(f"{path} is no directory of keys and values: {error.strerror}.") from error
    try:
        files = files_in(root)
        if clear:
            remove_files(root, files)
    finally:
        os.close(root)
    return files
