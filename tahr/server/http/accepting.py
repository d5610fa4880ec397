"""Accepts connections on a listening socket; stops and begins again without losing one."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

AT_ONCE = 64  # connections accepted before the loop turns to those it has
PAUSE_S = 0.5  # time without accepting where the system has no descriptor or memory for one more
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
log = logging.getLogger("tahr.server")


class Acceptor:
    """A listening socket while a loop reads it.

    A server of asyncio's drops a connection that it accepts in the turn in which it is closed. Here those that nobody
    has accepted wait in the socket, and those that were accepted are begun.
    """

    def __init__(self, listener: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]):
        self._listener = listener
        self._protocol = protocol
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop that reads the socket now
        self._retry: asyncio.TimerHandle | None = None
        self._beginning: set[asyncio.Task[None]] = set()
        listener.setblocking(False)

    def start(self) -> None:
        """Accept from now on."""
        self._retry = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener, self._accept)

    def stop(self) -> None:
        """Accept no more; clients wait in the socket until somebody does."""
        if self._retry:
            self._retry.cancel()
            self._retry = None
        if self._loop:
            self._loop.remove_reader(self._listener)
            self._loop = None

    def close(self) -> None:
        """Accept no more, and give the socket up."""
        self.stop()
        self._listener.close()

    def _accept(self) -> None:
        try:
            for _ in range(AT_ONCE):
                self._accept_one()
        except (BlockingIOError, InterruptedError):
            pass  # no more are waiting
        except OSError as error:
            self._pause(error)

    def _accept_one(self) -> None:
        try:
            connection = self._listener.accept()[0]
        except ConnectionAbortedError:
            return  # the client has left the queue
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._begin(connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    def _pause(self, error: OSError) -> None:
        if error.errno not in SCARCE:
            log.error("A connection could not be accepted: %s.", error.strerror)
        self.stop()
        self._retry = asyncio.get_running_loop().call_later(PAUSE_S, self.start)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        except OSError:
            connection.close()  # the client has left meanwhile
