"""The new server's side of a takeover. Nothing is taken before it could serve, unless the takeover is cold."""

import os
import select
import socket
from contextlib import suppress
from pathlib import Path

from tahr.errors import ServerError
from tahr.server.http.listening import Listener, bind, first_address
from tahr.server.state.settings import Settings
from tahr.server.status import servers
from tahr.server.takeover.messages import (
    IS_HERE,
    MOST_BYTES,
    PROTOCOL,
    Go,
    Hello,
    Passed,
    Ready,
    Taken,
    TakeoverError,
    TakeoverMessage,
    Welcome,
    decode,
    files_of,
    is_ours,
    peer_of,
    send,
)

REPLY_S = 20.0  # time for a reply of the running server


class Taking:
    """A takeover that the running server has agreed to; it serves until `take`."""

    def __init__(self, connection: socket.socket, settings: Settings, address: str, is_cold: bool):
        self.address = address
        self.is_cold = is_cold
        self._connection = connection
        self._settings = settings
        self.has_place = False
        self._taken: socket.socket | None = None
        self._process = os.pidfd_open(peer_of(connection)[0])

    def end_running(self) -> None:
        """Take the socket now, and wait until the running server has drained and ended. Clients wait in the socket."""
        self._taken = self._take()
        select.select([self._process], [], [])

    def take(self) -> Listener:
        """The listening socket, from now on ours. One of our own, if the running server has ended by itself."""
        try:
            return Listener(self._taken or self._take())
        except TakeoverError as error:
            if self._has_ended:
                self.has_place = True
                return bind(self._settings.host, self._settings.port)
            raise refusal(self.address, str(error)) from error

    @property
    def _has_ended(self) -> bool:
        return bool(select.select([self._process], [], [], 0)[0])

    def _take(self) -> socket.socket:
        send(self._connection, Ready())
        taken = received_socket(self._connection)
        send(self._connection, Taken())
        try:
            expect(self._connection, Go)
        except TakeoverError:
            taken.close()
            raise
        self.has_place = True
        return taken


def begin(settings: Settings, is_cold: bool) -> Taking | None:
    """Ask the server of that address; None where there is none of this user's."""
    if not IS_HERE:
        raise ServerError("--takeover needs Linux: stop the running server, then start the new one.")
    if settings.port == 0:
        raise ServerError("--takeover needs the port of the running server, and --port 0 is any free one.")
    address = first_address(settings.host, settings.port)
    found = [server for server in servers.running() if server.address == address]
    if not found:
        return None
    if not found[0].is_here:
        raise refusal(address, "it runs in another container")
    try:
        connection = connected(found[0].path.with_suffix(".sock"))
        send(connection, Hello(PROTOCOL, files_of(settings), is_cold))
        expect(connection, Welcome)
        return Taking(connection, settings, address, is_cold)
    except OSError as error:
        raise refusal(address, "it gives its socket to nobody") from error
    except TakeoverError as error:
        raise refusal(address, str(error)) from error


def refusal(address: str, reason: str) -> ServerError:
    return ServerError(f"The server on {address} is not taken over: {reason}. It goes on.")


def connected(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        made.settimeout(REPLY_S)
        made.connect(f"/proc/self/fd/{folder}/{path.name}")
        if not is_ours(made):
            raise TakeoverError("it belongs to another user")
    except BaseException:
        made.close()
        raise
    finally:
        os.close(folder)
    return made


def expect(connection: socket.socket, expected: type[TakeoverMessage]) -> None:
    try:
        data = connection.recv(MOST_BYTES)
    except TimeoutError:
        raise TakeoverError(f"it said nothing for {REPLY_S:g} s") from None
    except OSError as error:
        raise TakeoverError("it has gone") from error
    decode(data, expected)


def received_socket(connection: socket.socket) -> socket.socket:
    """The listening socket, which comes with a message."""
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, MOST_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    except TimeoutError:
        raise TakeoverError(f"it said nothing for {REPLY_S:g} s") from None
    except OSError as error:
        raise TakeoverError("it has gone") from error
    made = [socket.socket(fileno=each) for each in descriptors]
    try:
        decode(data, Passed)
        if not made or not is_listening(made[0]):
            raise TakeoverError("it passed no listening socket")
    except TakeoverError:
        for each in made:
            each.close()
        raise
    return made[0]


def is_listening(found: socket.socket) -> bool:
    with suppress(OSError):
        return found.type == socket.SOCK_STREAM and bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False
