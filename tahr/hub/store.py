"""Tahr's own directory, and the few file operations every source needs: locks, atomic writes, space on the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tahr.errors import DownloadError, TahrError
from tahr.hub.progress import human_bytes

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def home() -> Path:
    """Where models from anywhere but the Hugging Face hub live: $TAHR_HOME, or `tahr` in the user's cache."""
    named = os.environ.get("TAHR_HOME")
    return expanded(Path(named) if named else user_cache() / "tahr")


def user_cache() -> Path:
    """$XDG_CACHE_HOME, or ~/.cache. A relative path there means nothing, as the XDG specification has it."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path("~/.cache")


def expanded(path: Path) -> Path:
    """The path a setting names. A user without a home (a container's, a service's) has the root, as runtimes of
    containers have it: nothing is found there, and local files are used all the same."""
    try:
        return path.expanduser()
    except RuntimeError:
        return Path("/", *path.parts[1:])


@contextmanager
def lock(target: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the one right to produce `target`, among all processes; `waiting` is called once if another holds it."""
    path = target.with_name(f".{target.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _acquire(path, waiting)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, waiting: Callable[[], None]) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # The last holder removes the file, at any moment: a lock on a removed file does not exclude later processes.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


@contextmanager
def emptied_on_error(root: Path, holds_weights: Callable[[], bool]) -> Iterator[None]:
    """Remove a directory that this block made, if it fails before any part of the weights has come.

    What was fetched of the weights stays, so that the next pull goes on from there.
    """
    is_new = not root.exists()
    try:
        yield
    except TahrError:
        if is_new and not holds_weights():
            remove_tree(root)
        raise


def remove_tree(root: Path) -> None:
    """Delete a directory, if it is there."""
    shutil.rmtree(root, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a small file so that readers see all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _draft_of(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _draft_of(path) as draft:
        draft.write_bytes(data)


@contextmanager
def _draft_of(path: Path) -> Iterator[Path]:
    """A file to write that then takes the place of `path`; of a disk that is full it does not take more."""
    path = path.resolve() if path.exists() else path  # a link stays one, and the file is where it points
    draft = _draft(path)
    try:
        yield draft
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.draft")


def link(path: Path, blob: Path) -> None:
    """Make `path` show `blob`, replacing what it showed before."""
    if path.is_symlink() and path.resolve() == blob.resolve():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(path)
    draft.symlink_to(os.path.relpath(blob, path.parent))
    draft.replace(path)


def require_space(directory: Path, needed_bytes: int) -> None:
    """Refuse before the first byte when the disk cannot hold the last one."""
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise DownloadError(
            f"The download needs {human_bytes(needed_bytes)}, but the disk of {directory} has only"
            f" {human_bytes(free)} left: free some space (`tahr rm`), or set TAHR_HOME or HF_HOME to a larger disk."
        )


@contextmanager
def disk_errors(directory: Path) -> Iterator[None]:
    """Turn a disk that fills up or refuses us midway into one clear sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise DownloadError(
                f"The disk of {directory} is full. What was fetched is kept: free some space (`tahr rm`) and pull"
                " again to go on, or set TAHR_HOME or HF_HOME to a larger disk."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise DownloadError(
                f"{directory} cannot be written ({error.strerror}): set TAHR_HOME or HF_HOME to a directory you own."
            ) from error
        raise


def disk_bytes(path: Path) -> int:
    """Bytes that a file or directory really occupies; links are not followed, unwritten holes do not count."""
    own = path.lstat()
    if not path.is_dir() or path.is_symlink():
        return min(own.st_size, own.st_blocks * 512)
    return sum(disk_bytes(child) for child in path.iterdir())
