"""Files that say which servers of a user run on this machine, so that `tahr stop` finds them.

A server holds a lock on its file for as long as it lives; a file without one was left behind. They lie in a folder of
the user's own: who can write a number into one has the process of that number ended.
"""

import errno
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tahr import regular_file
from tahr.errors import ConfigError
from tahr.hub import store

MOST_BYTES = 4096
SOCKET = ".sock"
LOOK_S = 0.05
NAMESPACE = Path("/proc/self/ns/pid")  # elsewhere, a number means another process


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server and the process that it is."""

    path: Path
    pid: int
    address: str
    namespace: str

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def is_alive(self) -> bool:
        return is_locked(self.path)

    @property
    def is_here(self) -> bool:
        """Whether its number means its process to us: not in another container."""
        return self.namespace == namespace()

    def end(self) -> None:
        """Have its running requests finished, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
            while self.is_alive:
                time.sleep(LOOK_S)


def folder() -> Path:
    """Where the files are: a place that a restart of the machine empties, or else beside the models."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    return runtime / "tahr" if runtime.is_absolute() else store.home() / "servers"


class Announcement:
    """The file of this process: others find the server while it is shown."""

    def __init__(self, warn: Callable[[str], None]):
        self.path = folder() / f"{os.getpid()}.json"
        self._warn = warn
        self._descriptor: int | None = None

    @property
    def is_shown(self) -> bool:
        return self._descriptor is not None

    @property
    def socket_path(self) -> Path:
        """A private socket beside it."""
        return self.path.with_suffix(SOCKET)

    def show(self, address: str) -> None:
        try:
            fields = {"pid": os.getpid(), "address": address, "namespace": namespace()}
            self._descriptor = written(self.path, fields)
        except OSError as error:
            where = f"{self.path} cannot be written ({error.strerror})"
            self._warn(f"note: `tahr stop` and --takeover will not find this server: {where}.")

    def hide(self) -> None:
        if self._descriptor is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def announced(address: str, warn: Callable[[str], None]) -> Iterator[None]:
    """Have others find a server while it runs."""
    announcement = Announcement(warn)
    announcement.show(address)
    try:
        yield
    finally:
        announcement.hide()


def written(path: Path, fields: dict[str, Any]) -> int:
    """A new file, locked before others see it; the descriptor holds the lock."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    hidden = path.with_suffix(".new")
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, json.dumps(fields).encode())
        hidden.rename(path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def running() -> list[RunningServer]:
    """Servers that run, by their ports; what others left behind is removed."""
    found = []
    for path in folder().glob("*.json"):
        if not is_locked(path):
            path.unlink(missing_ok=True)
            path.with_suffix(SOCKET).unlink(missing_ok=True)
        elif server := read(path):
            found.append(server)
    return sorted(found, key=lambda each: each.port)


def the_one(found: list[RunningServer]) -> RunningServer:
    """The server that is meant, where there is no choice."""
    if len(found) > 1:
        ports = ", ".join(str(server.port) for server in found)
        raise ConfigError(f"{len(found)} servers run here, on the ports {ports}: say which with --port.")
    if not found[0].is_here:
        raise ConfigError(f"The server on {found[0].address} runs in another container: end it there.")
    return found[0]


def read(path: Path) -> RunningServer | None:
    """The server that a file names; None where the file is none of ours."""
    try:
        fields = json.loads(regular_file.read_text(path, MOST_BYTES))
        server = RunningServer(path, int(fields["pid"]), str(fields["address"]), str(fields["namespace"]))
        return server if server.pid > 1 and server.port else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def is_locked(path: Path) -> bool:
    try:
        descriptor = regular_file.open_regular(path)
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.EINVAL)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def namespace() -> str:
    with suppress(OSError):
        return os.readlink(NAMESPACE)  # noqa: PTH115 (a link that leads nowhere)
    return ""
