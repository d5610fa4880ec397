"""Regular files, which alone are read: a pipe or a device that a path may name would make its reader wait forever.

All failures are an `OSError` whose `strerror` goes into a sentence, so that callers treat them as one kind.
"""

import errno
import os
import stat
from pathlib import Path

# Flags that some systems lack. Without O_NONBLOCK, opening a pipe waits until somebody writes to it.
FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))
NOT_REGULAR = "it is not a regular file"


def open_regular(path: Path) -> int:
    """A descriptor to read a regular file by; never waits, whatever the path names and however often it changes."""
    _refuse_others(path, path.stat())  # goes first, because opening some devices does something
    descriptor = os.open(path, FLAGS)
    try:
        _refuse_others(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """The content of a file of at most so many bytes."""
    with open(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size <= most_bytes:
            content = file.read(most_bytes + 1)  # a file may grow meanwhile
            if len(content) <= most_bytes:
                return content
    raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", os.fspath(path))


def read_start(path: Path, n_bytes: int) -> bytes:
    """The first bytes of a file, fewer where it has fewer."""
    with open(open_regular(path), "rb") as file:
        return file.read(n_bytes)


def read_text(path: Path, most_bytes: int, errors: str = "strict") -> str:
    """UTF-8 with any kind of line ends, and without the mark that some editors begin files with."""
    text = read_bytes(path, most_bytes).decode("utf-8-sig", errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_piped(path: Path, most_bytes: int) -> bytes:
    """Read a file that a person at a shell names, which may be a pipe of the shell (`<(command)`): this may wait."""
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return content


def _refuse_others(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL, NOT_REGULAR, os.fspath(path))
