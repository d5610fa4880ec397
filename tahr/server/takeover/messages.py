"""The words of a takeover: messages of JSON over a private socket, one of them with the listening socket.

| new server | running server |
|---|---|
| hello: what it speaks and opens | welcome, or refused with a reason |
| loads its models | serves |
| ready | accepts nobody; the socket |
| taken | go: it drains |
| serves | ends; where the new one dies before that, it serves again |
"""

import os
import socket
import struct
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from tahr.server.state.settings import Settings

PROTOCOL = 1  # another number, other words: `hello` and `refused` alone stay as they are
MOST_BYTES = 64 * 1024
CREDENTIALS = struct.Struct("3i")  # process, user, group
IS_HERE = hasattr(socket, "SO_PEERCRED") and Path("/proc/self/fd").is_dir()
M = TypeVar("M", bound="TakeoverMessage")


class TakeoverError(Exception):
    """The other side has gone, refuses, or says something that is not expected."""


class TakeoverMessage(Struct, frozen=True, tag_field="type", tag=str.lower):
    """A datagram of its own."""


class Hello(TakeoverMessage, frozen=True):
    """The first message of a new server."""

    protocol: int
    files: dict[str, str] = {}  # paths that one server alone may have open, by the options that name them
    is_cold: bool = False  # the running server ends before the new one opens anything


class Refusal(TakeoverMessage, frozen=True):
    """A reason, as the end of a sentence."""

    reason: str


class Welcome(TakeoverMessage, frozen=True):
    """The running server waits for `ready`, and serves meanwhile."""


class Ready(TakeoverMessage, frozen=True):
    """The new server could serve."""


class Passed(TakeoverMessage, frozen=True):
    """The descriptor comes with it; nobody accepts until `go`."""


class Taken(TakeoverMessage, frozen=True):
    """The new server has the socket."""


class Go(TakeoverMessage, frozen=True):
    """The new server accepts from now on."""


DECODER = msgspec.json.Decoder(Hello | Refusal | Welcome | Ready | Passed | Taken | Go)


def decode(data: bytes, expected: type[M]) -> M:
    """A message of the kind that is expected."""
    if not data:
        raise TakeoverError("it has gone")
    try:
        found = DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise TakeoverError("it speaks other words") from None
    if isinstance(found, Refusal):
        raise TakeoverError(found.reason)
    if not isinstance(found, expected):
        raise TakeoverError(f"it says `{type(found).__name__.lower()}` out of turn")
    return found


def send(connection: socket.socket, message: TakeoverMessage, descriptors: tuple[int, ...] = ()) -> None:
    """Never waits: a message is much smaller than what the system takes."""
    try:
        socket.send_fds(connection, [msgspec.json.encode(message)], descriptors)
    except OSError as error:
        raise TakeoverError("it has gone") from error


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end, as the system knows them."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    process, user, _ = CREDENTIALS.unpack(data)
    return process, user


def is_ours(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user: sockets go to nobody else, and come from nobody else."""
    return peer_of(connection)[1] == os.geteuid()


def files_of(settings: Settings) -> dict[str, str]:
    """The paths that one server alone may have open, by the options that name them."""
    named = {
        "state-dir": settings.state_dir,
        "decision-trace-jsonl": settings.decision_trace_jsonl,
        "chrome-trace": settings.chrome_trace,
    }
    return {option: str(Path(path).expanduser().resolve()) for option, path in named.items() if path}
