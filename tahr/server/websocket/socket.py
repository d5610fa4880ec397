"""One WebSocket: what comes is bounded in bytes and time, and whoever has gone is noticed."""

import asyncio
from typing import Protocol

from tahr.server.http.connection import CoalescingTransport, Flow
from tahr.server.http.errors import HttpError
from tahr.server.http.request import BodyLimits, BodyMemory
from tahr.server.websocket.frames import NO_STATUS, Close, FrameError, FrameReader, Opcode, closing, frame

PING_S = 30.0  # between two looks whether the client is there
SILENT_S = 120.0  # time after which a client that sends nothing, not even a pong, is gone
CLOSE_S = 2.0  # time for a client to close after we have


class MessageTaker(Protocol):
    """The user of a WebSocket, who gets its messages."""

    @property
    def is_busy(self) -> bool:
        """Whether a reply is due, or on its way."""

    def take(self, text: bytes) -> None:
        """A whole message; a `FrameError` or `HttpError` ends the connection."""

    def lost(self) -> None:
        """The client has left, or is not wanted any more."""


class HeldBytes:
    """Memory for what one client has sent, as a part of that for all bodies."""

    def __init__(self, memory: BodyMemory):
        self._memory = memory
        self._n_bytes = 0

    def set(self, n_bytes: int) -> None:
        """Hold so many bytes from now on; 503 where there is no memory for them."""
        more = n_bytes - self._n_bytes
        if more > 0:
            self._memory.hold(more)
        else:
            self._memory.n_bytes += more
        self._n_bytes = n_bytes


class WebSocket:
    """A connection after the handshake. Its transport is that of the HTTP protocol, whose bounds on writing hold."""

    def __init__(self, transport: CoalescingTransport, flow: Flow, limits: BodyLimits, taker: MessageTaker):
        loop = asyncio.get_running_loop()
        self._transport = transport
        self._flow = flow
        self._loop = loop
        self._taker = taker
        self._reader = FrameReader(limits.max_bytes)
        self._held = HeldBytes(limits.memory)
        self._timeout_s = limits.timeout_s  # time for all parts of a message
        self.is_closing = False
        self._heard_at = loop.time()
        self._pinging = loop.call_later(PING_S, self._ping)
        self._late: asyncio.TimerHandle | None = None  # ends a message that does not become whole

    @property
    def is_busy(self) -> bool:
        """Whether a reply is due, or on its way."""
        return not self.is_closing and self._taker.is_busy

    def received(self, data: bytes) -> None:
        """Bytes of the client."""
        if self.is_closing:
            return None
        self._heard_at = self._loop.time()
        try:
            for message in self._reader.feed(data):
                self._take(message.kind, message.data)
            self._held.set(self._reader.n_bytes)
        except FrameError as error:
            return self.close(error.code, str(error))
        except HttpError as error:
            return self.close(Close.TRY_LATER, error.message)
        self._limit_time()
        return None

    def send_text(self, data: bytes) -> bool:
        """Send a message; whether the client keeps up."""
        if not self.is_closing:
            self._transport.write_now(frame(Opcode.TEXT, data))
        return not self._flow.write_paused

    def send_ping(self) -> None:
        """Send what means nothing, to a client that reads."""
        if not (self.is_closing or self._flow.write_paused):
            self._transport.write_now(frame(Opcode.PING, b""))

    def close(self, code: int = Close.GOING_AWAY, reason: str = "") -> None:
        """Say why, and leave the client a moment to do the same."""
        if self.is_closing:
            return
        self.is_closing = True
        self._transport.write(closing(code, reason))
        self._pinging.cancel()
        self._pinging = self._loop.call_later(CLOSE_S, self._transport.close)
        self._taker.lost()

    def lost(self) -> None:
        """The connection is gone."""
        self.is_closing = True
        self._pinging.cancel()
        self._stop_waiting()
        self._held.set(0)
        self._taker.lost()

    def _take(self, kind: Opcode, data: bytes) -> None:
        if self.is_closing:
            return
        if kind is Opcode.TEXT:
            self._stop_waiting()
            self._taker.take(data)
        elif kind is Opcode.PING and not self._flow.write_paused:  # who reads nothing is not answered
            self._transport.write_now(frame(Opcode.PONG, data))
        elif kind is Opcode.CLOSE:
            self.close(int.from_bytes(data[:2], "big") if len(data) >= 2 else NO_STATUS)
            self._transport.close()

    def _limit_time(self) -> None:
        if not self._reader.is_inside:
            self._stop_waiting()
        elif self._late is None:
            self._late = self._loop.call_later(self._timeout_s, self._end_late)

    def _stop_waiting(self) -> None:
        if self._late:
            self._late.cancel()
            self._late = None

    def _end_late(self) -> None:
        self.close(Close.POLICY, f"A message did not arrive within {self._timeout_s:g} seconds.")

    def _ping(self) -> None:
        if self._loop.time() - self._heard_at > SILENT_S:
            self._transport.abort()
        else:
            self.send_ping()
            self._pinging = self._loop.call_later(PING_S, self._ping)
