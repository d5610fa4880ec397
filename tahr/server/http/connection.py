"""A client's connection: what handlers may know of it, and the transport under it."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

# keys of the scope: a `Connection`; the body has arrived
CONNECTION = "tahr.connection"
COMPLETE = "tahr.complete"
ON_BEHALF = "tahr.on_behalf"  # an `OnBehalf`, where the server itself makes the request
OFFER = "tahr.offer"  # an `UpgradeOffer`, where the client would rather speak another protocol
SOCKET = "tahr.socket"  # the number of the WebSocket that the request came over, as a message
UNFRAMED = "tahr.unframed"  # a function, where the client knows no chunks: the stream that follows ends by closing
SLOWEST_BYTES_PER_S = 16 * 1024  # slowest client that is allowed, after the first `reader_timeout_s`


class Flow(Protocol):
    """Whether a client reads fast enough."""

    write_paused: bool

    async def drain(self) -> None: ...


class Connection:
    """Whether a client is still there and reads, and a way to send it chunks; needs no task that waits for news."""

    def __init__(self, transport: "CoalescingTransport", flow: Flow) -> None:
        self._transport = transport
        self._flow = flow
        self.drained = flow.drain
        self._is_lost = False
        self._on_lost: list[Callable[[], None]] = []

    def add_lost_callback(self, callback: Callable[[], None]) -> None:
        """Call this when the client leaves, or at once if it has left."""
        self._on_lost.append(callback)
        if self._is_lost:
            callback()

    def remove_lost_callback(self, callback: Callable[[], None]) -> None:
        self._on_lost.remove(callback)

    def send_chunk(self, data: bytes) -> bool:
        """Send a chunk of a chunked response now; whether the client keeps up."""
        if data:  # a chunk of no bytes would end the response
            self._transport.write_now(b"%x\r\n%b\r\n" % (len(data), data))
        return not self._flow.write_paused

    def send_bytes(self, data: bytes) -> bool:
        """Send bytes of a response that is not chunked."""
        self._transport.write_now(data)
        return not self._flow.write_paused

    def lost(self) -> None:
        """The client has left."""
        self._is_lost = True
        for callback in list(self._on_lost):
            callback()


class Upgraded(Protocol):
    """The owner of a connection after another protocol was agreed on."""

    @property
    def is_busy(self) -> bool:
        """Whether a reply is due, or on its way."""

    def received(self, data: bytes) -> None: ...
    def lost(self) -> None: ...
    def close(self) -> None:
        """Say that the server ends, and close."""


@dataclass(frozen=True, slots=True)
class UpgradeOffer:
    """A client's wish to speak another protocol, and what its fulfilment takes."""

    protocol: str
    app: Callable[..., Awaitable[None]]  # answers requests
    start: Callable[[Coroutine[Any, Any, None]], None]  # runs work of the connection
    transport: "CoalescingTransport"
    flow: Flow
    switch: Callable[[bytes, Upgraded], None]  # sends the head of the response that agrees


class CoalescingTransport:
    """A transport that sends what is written in one turn of the loop as one: a system call costs more than a join.

    A client that leaves data unread for too long is cut off, also while the connection is closing.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, reader_timeout_s: float):
        self._transport = transport
        self._loop = loop
        self._reader_timeout_s = reader_timeout_s
        self._parts: list[bytes] = []
        self._reader_timer: asyncio.TimerHandle | None = None
        self._fd: int = transport.get_extra_info("socket").fileno()
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def write_now(self, data: bytes) -> None:
        """Write without waiting for more of this turn; in order, if something waits already."""
        if self._parts:
            self._parts.append(data)
        else:
            self._send(data)

    def _send(self, data: bytes) -> None:
        """Let the system take what it takes at once, and the transport the rest.

        uvloop would keep the interpreter's lock during the system call, and the engine's thread wants to go on.
        """
        if self._transport.is_closing():
            return
        n_sent = 0
        if not self._transport.get_write_buffer_size():
            with suppress(OSError):  # a full buffer or a client that has gone: the transport will see
                n_sent = os.write(self._fd, data)
        if n_sent < len(data):
            self._transport.write(memoryview(data)[n_sent:])  # no copy: a reply may have megabytes

    @property
    def has_unsent(self) -> bool:
        return bool(self._parts or self._transport.get_write_buffer_size())

    def close(self) -> None:
        """Close once everything is sent."""
        self._flush()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self.expect_reader()

    def expect_reader(self) -> None:
        """Start the time limit for the client to read its waiting bytes."""
        if self._reader_timer is None:
            limit_s = self._reader_timeout_s + self._transport.get_write_buffer_size() / SLOWEST_BYTES_PER_S
            self._reader_timer = self._loop.call_later(limit_s, self._transport.abort)

    def reader_caught_up(self) -> None:
        """The client has read, or has gone."""
        if self._reader_timer:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _flush(self) -> None:
        if self._parts:
            parts = self._parts
            self._parts = []
            self._send(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
