"""Directories that hold keys and values of texts: ours alone, and never reached through a link."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from tahr.errors import ConfigError

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PRIVATE = 0o700
OTHERS = 0o077  # permissions of everybody but the owner


def open_folder(path: Path) -> int:
    """A descriptor of a directory, which is made if it is not there; one that others may enter is refused."""
    try:
        path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        folder = os.open(path, OPEN_FOLDER)
    except OSError as error:
        is_link = path.is_symlink()
        reason = "it is a link" if is_link else error.strerror
        raise ConfigError(f"{path} cannot hold keys and values: {reason}. Name a directory of your own.") from error
    if fault := fault_of(os.fstat(folder)):
        os.close(folder)
        raise ConfigError(
            f"{path} cannot hold keys and values, from which prompts can be read: {fault}. "
            "Make it yours alone (chmod 700), or name another directory."
        )
    return folder


def open_below(root: int, name: str) -> int:
    """A descriptor of a directory in one that is open; refused and made likewise."""
    try:
        with suppress(FileExistsError):
            os.mkdir(name, PRIVATE, dir_fd=root)
        folder = os.open(name, OPEN_FOLDER, dir_fd=root)
    except OSError as error:
        raise ConfigError(f"The directory {name} of keys and values cannot be used: {error.strerror}.") from error
    if fault := fault_of(os.fstat(folder)):
        os.close(folder)
        raise ConfigError(f"The directory {name} of keys and values is not ours alone ({fault}): remove it.")
    return folder


def fault_of(found: os.stat_result) -> str:
    """Why others might read or change what is in a directory or file; empty if they cannot."""
    if found.st_uid != os.geteuid():
        return "it belongs to somebody else"
    if stat.S_IMODE(found.st_mode) & OTHERS:
        return "others than its owner may enter it"
    return ""
