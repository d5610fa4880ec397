"""The running server's side of a takeover: whatever happens to the new one, it serves on until `go`, and after."""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from tahr.server.takeover.messages import (
    MOST_BYTES,
    PROTOCOL,
    Go,
    Hello,
    Passed,
    Ready,
    Refusal,
    Taken,
    TakeoverError,
    TakeoverMessage,
    Welcome,
    decode,
    is_ours,
    peer_of,
    send,
)

HELLO_S = 10.0  # time for the first message
TAKEN_S = 10.0  # longest time in which nobody accepts: then the running server does again
PAUSE_S = 1.0  # time between attempts where the system refuses one
BACKLOG = 64
MOST_TALKS = 4  # processes that may speak to us at once
M = TypeVar("M", bound=TakeoverMessage)
log = logging.getLogger("tahr.server")


class Giver(Protocol):
    """A server that gives its socket away."""

    def refusal(self, is_cold: bool) -> str:
        """Why it cannot be taken over now, as the end of a sentence; empty if it can."""

    def pause(self) -> int:
        """Accept nobody for a moment; the descriptor of the socket in which clients wait meanwhile."""

    def resume(self) -> None:
        """Accept and serve again."""

    def hand_over(self) -> None:
        """Leave new clients to the other server, and drain."""


class Giving:
    """A private socket on which new servers ask. Only the event loop's thread uses it."""

    def __init__(self, path: Path, files: Mapping[str, str], giver: Giver):
        self._files = files
        self._giver = giver
        self._successor = 0  # the process that takes over now
        self._talks: set[asyncio.Task[None]] = set()
        self._path = path
        self._socket = private_socket(path)

    async def run(self) -> None:
        """Talk to whoever comes, until cancelled."""
        try:
            while True:
                self._begin(await accepted(self._socket))
        finally:
            self._path.unlink(missing_ok=True)
            self._socket.close()

    def _begin(self, connection: socket.socket) -> None:
        if len(self._talks) >= MOST_TALKS:
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._talk(connection))
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)

    async def _talk(self, connection: socket.socket) -> None:
        process, _ = peer_of(connection)
        with connection:
            try:
                hello = await receive(connection, Hello, HELLO_S)
                reason = self._refusal(connection, hello)
                if reason:
                    send(connection, Refusal(reason))
                    raise TakeoverError(reason)
                send(connection, Welcome())
                log.info("takeover begins process=%d", process)
                await self._give(connection, process)
            except (TakeoverError, OSError) as error:
                log.warning("takeover ends process=%d reason=%r", process, str(error))

    def _refusal(self, connection: socket.socket, hello: Hello) -> str:
        if not is_ours(connection):
            return "it belongs to another user"
        if hello.protocol != PROTOCOL:
            return f"it speaks version {PROTOCOL} of takeovers, and the new one version {hello.protocol}"
        if self._successor:
            return f"process {self._successor} takes it over already"
        shared = [option for option, path in hello.files.items() if self._files.get(option) == path]
        if shared and not hello.is_cold:
            return f"it has {self._files[shared[0]]} open (--{shared[0]}), which two cannot: use --takeover=cold"
        return self._giver.refusal(hello.is_cold)

    async def _give(self, connection: socket.socket, process: int) -> None:
        self._successor = process
        try:
            await receive(connection, Ready)
            try:
                send(connection, Passed(), (self._giver.pause(),))
                await receive(connection, Taken, TAKEN_S)
                self._giver.hand_over()
                send(connection, Go())
                while True:
                    await receive(connection, TakeoverMessage)  # nothing comes before its end, or ours
            except (TakeoverError, OSError):
                self._giver.resume()
                raise
        finally:
            self._successor = 0


async def accepted(listener: socket.socket) -> socket.socket:
    while True:
        try:
            return (await asyncio.get_running_loop().sock_accept(listener))[0]
        except OSError as error:  # no descriptor is left, say: clients need those more
            log.warning("a takeover could not begin: %s", error.strerror)
            await asyncio.sleep(PAUSE_S)


async def receive(connection: socket.socket, expected: type[M], within_s: float | None = None) -> M:
    try:
        async with asyncio.timeout(within_s):
            data = await asyncio.get_running_loop().sock_recv(connection, MOST_BYTES)
    except TimeoutError:
        raise TakeoverError(f"it said nothing for {within_s:g} s") from None
    except OSError as error:
        raise TakeoverError("it has gone") from error
    return decode(data, expected)


def private_socket(path: Path) -> socket.socket:
    """A listening socket of that name; names of sockets are short, so it is reached by its folder's descriptor."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        with suppress(FileNotFoundError):
            path.unlink()
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
        path.chmod(0o600)
        made.listen(BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    finally:
        os.close(folder)
    return made
