"""The HTTP server of uvicorn, within our bounds, with signals, sockets and the end left to its owner."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn

from tahr.server.http.accepting import Acceptor
from tahr.server.http.protocol import BoundedProtocol


class UvicornServer(uvicorn.Server):
    """Serves what its acceptor accepts, until `should_exit`."""

    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        self._acceptor: Acceptor | None = None

    def listen(self, listener: socket.socket) -> None:
        """Accept on this socket, once it serves."""
        self._acceptor = Acceptor(listener, self._connection)

    def _connection(self) -> BoundedProtocol:
        make: Any = self.config.http_protocol_class
        made: BoundedProtocol = make(config=self.config, server_state=self.server_state, app_state={})
        return made

    @property
    def clients(self) -> list[BoundedProtocol]:
        """All connections."""
        return [each for each in self.server_state.connections if isinstance(each, BoundedProtocol)]

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self.start_accepting()

    def start_accepting(self) -> None:
        if self._acceptor:
            self._acceptor.start()

    def stop_accepting(self) -> None:
        """Clients wait in the socket until somebody accepts them."""
        if self._acceptor:
            self._acceptor.stop()

    def end(self, within_s: float) -> None:
        """Serve no more; connections and their tasks have that long to end by themselves."""
        limit: Any = within_s  # seconds, whole or not
        self.config.timeout_graceful_shutdown = limit
        self.should_exit = True

    def cancel_tasks(self) -> None:
        """Cancel the work of all requests; each says so to a client that has had no reply."""
        for task in list(self.server_state.tasks):
            task.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor:
            self._acceptor.close()
        await super().shutdown(sockets=[])


def uvicorn_config(app: Any, reader_timeout_s: float) -> uvicorn.Config:
    protocol: Any = partial(BoundedProtocol, reader_timeout_s=reader_timeout_s)
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
