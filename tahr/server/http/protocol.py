"""HTTP/1.1 by httptools, with bounds on everything a client may send or leave unread before a handler looks at it."""

import asyncio
import select
import socket
from collections.abc import Coroutine
from functools import partial
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tahr.server.http.connection import (
    COMPLETE,
    CONNECTION,
    OFFER,
    UNFRAMED,
    CoalescingTransport,
    Connection,
    Upgraded,
    UpgradeOffer,
)
from tahr.server.http.errors import Envelope, HttpError, request_id

MAX_HEAD_BYTES = 64 * 1024  # limit on heads, trailers, and bytes between two pieces of a body
HEAD_TIMEOUT_S = 20.0
LINGER_S = 5.0  # time for the rest of a body after the response
PROBE_S = 0.1  # between looks whether a client that sends no more is still there
MAX_PIPELINED = 16  # requests that wait for the response to the one before, while the connection is still read
HEAD = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nconnection: close\r\nx-request-id: %b\r\n"
TAIL = b"content-length: %d\r\n\r\n%b"
TOO_LARGE = b"431 Request Header Fields Too Large", "The headers or trailers are larger than 64 KiB: send less."
LEADING_ZERO = b"0"  # first digit of the next chunk's size, which is written whole when there is one
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"  # clients ignore it, also where they expect none
NOT_HTTP = b"400 Bad Request", "This is not HTTP/1.1 as the server understands it."


class BoundedProtocol(HttpToolsProtocol):
    """The parser alone would keep headers and trailers of any size, and wait for any part of a request forever."""

    _n_head_bytes = 0  # received since the last byte of a body
    _n_listed_bytes = 0  # header bytes so far: a head may also come complete, all at once
    _in_message = False
    _in_body = False
    _upgrades = False  # the head offers another protocol
    _offered = b""  # name of the protocol that the head offers
    _upgraded: Upgraded | None = None  # has the connection from then on
    _timer: asyncio.TimerHandle | None = None  # closes the connection
    _half_closed = False  # the client sends no more
    _probe_timer: asyncio.TimerHandle | None = None
    _running: RequestResponseCycle | None = None  # requests behind it are in the pipeline

    def __init__(self, *args: Any, reader_timeout_s: float, **options: Any):
        super().__init__(*args, **options)
        self._reader_timeout_s = reader_timeout_s

    # ---- the connection ---------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._coalescing = CoalescingTransport(transport, self.loop, self._reader_timeout_s)
        super().connection_made(self._coalescing)  # type: ignore[arg-type]
        self._connection = Connection(self._coalescing, self.flow)
        self._close_after(HEAD_TIMEOUT_S)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more: it waits for its replies, or has gone altogether, which only writing can tell."""
        if self._in_message or self._is_idle or self._upgraded:
            return False  # close: no reply is due, or its request will never be complete
        self._half_closed = True
        self._probe_timer = self.loop.call_later(PROBE_S, self._probe, False)
        return True

    def _probe(self, is_told: bool) -> None:
        """Look whether what was written so far met somebody; something is written first if nothing was."""
        if is_reset(self.transport.get_extra_info("socket")):
            return self.transport.abort()
        running = self._running
        if running and not is_told:
            is_told = self._tell(running)
        self._probe_timer = self.loop.call_later(PROBE_S, self._probe, is_told)
        return None

    def _tell(self, running: RequestResponseCycle) -> bool:
        """Write something that means nothing; whether there was anything to write."""
        if running.scope["http_version"] != "1.1" or (running.response_started and not running.chunked_encoding):
            return False
        self.transport.write(LEADING_ZERO if running.response_started else CONTINUE)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        if self._probe_timer:
            self._probe_timer.cancel()
        self._coalescing.reader_caught_up()
        super().connection_lost(exc)
        self._connection.lost()
        if self._upgraded:
            self._upgraded.lost()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._coalescing.expect_reader()

    def resume_writing(self) -> None:
        self._coalescing.reader_caught_up()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._upgraded:
            return self._upgraded.received(data)
        self._unset_keepalive_if_required()
        self._n_head_bytes += len(data)  # provisional: `on_body` takes back bytes that were none of a head
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as found:
            self._parse_without_upgrade(data[found.args[0] :])
        except httptools.HttpParserError:
            self._refuse(*NOT_HTTP)
        if self._n_head_bytes > MAX_HEAD_BYTES:
            self._refuse(*TOO_LARGE)
        elif self._timer is None and not self._in_message and self._is_idle:
            self._close_after(HEAD_TIMEOUT_S)  # bytes between two requests begin none
        return None

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_busy(self) -> bool:
        """Whether a reply is due, or on its way."""
        if self._upgraded and self._upgraded.is_busy:
            return True
        return not self._is_idle or self._coalescing.has_unsent

    @property
    def has_begun(self) -> bool:
        """Whether a part of a request is here."""
        return self._in_message

    # ---- callbacks of the parser ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._close_after(HEAD_TIMEOUT_S)
        self._n_listed_bytes = 0
        self._in_message = True
        super().on_message_begin()
        self.scope[CONNECTION] = self._connection  # type: ignore[literal-required]

    def on_header(self, name: bytes, value: bytes) -> None:
        self._n_listed_bytes += len(name) + len(value) + 4
        if self._n_listed_bytes <= MAX_HEAD_BYTES and not self._in_body:  # a trailer is no header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._upgrades = self.parser.should_upgrade()
        if self._upgrades:
            return
        self._cancel_timer()
        self._in_body = True
        if self._n_listed_bytes > MAX_HEAD_BYTES:
            self._refuse(*TOO_LARGE)
        elif not self.transport.is_closing():
            self._n_head_bytes = 0
            super().on_headers_complete()
            if not self.pipeline:
                self._running = self.cycle
            if self.parser.get_http_version() == "1.0":
                self.scope[UNFRAMED] = partial(leave_unframed, self.cycle)  # type: ignore[literal-required]
            if self._offered and not self.pipeline:
                self.scope[OFFER] = self._offer()  # type: ignore[literal-required]
            self._read_on()

    def on_body(self, body: bytes) -> None:
        self._n_head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._upgrades:
            return
        self._in_message = self._in_body = False
        self._n_head_bytes = 0
        self._cancel_timer()
        self.scope[COMPLETE] = True  # type: ignore[literal-required]
        super().on_message_complete()
        self._read_on()

    def _read_on(self) -> None:
        """A large body or a pipelined request stops reading, without which nobody notices that the client leaves."""
        if len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        self._running = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self._half_closed and self._is_idle:
            self.transport.close()
        if self._in_body and self._is_idle:
            self._close_after(LINGER_S)

    # ---- another protocol -------------------------------------------------------------------------------------

    def _offer(self) -> UpgradeOffer:
        protocol = self._offered.decode("latin-1").lower()
        self._offered = b""
        return UpgradeOffer(protocol, self.app, self._start, self._coalescing, self.flow, self._switch)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _switch(self, head: bytes, upgraded: Upgraded) -> None:
        """The request that asked for it is answered by the head alone."""
        self._cancel_timer()
        self.cycle.response_started = self.cycle.response_complete = True
        self._upgraded = upgraded
        self.transport.write(head)

    def shutdown(self) -> None:
        if self._upgraded:
            self._upgraded.close()
        else:
            super().shutdown()

    # ---- ends -------------------------------------------------------------------------------------------------

    def _parse_without_upgrade(self, rest: bytes) -> None:
        """Parse the head again without its offer of another protocol, which would cost the request its body."""
        if self.parser.get_method() == b"CONNECT":
            return self._refuse(*NOT_HTTP)
        head = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        head += [b"%b: %b" % pair for pair in self.headers if pair[0] != b"upgrade"]
        self._offered = dict(self.headers).get(b"upgrade", b"")
        self.parser = httptools.HttpRequestParser(self)
        try:
            self.parser.feed_data(b"\r\n".join(head) + b"\r\n\r\n" + rest)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(*NOT_HTTP)
        return None

    def _refuse(self, status: bytes, message: str) -> None:
        if not self.transport.is_closing():
            id = request_id()
            body = msgspec.json.encode(Envelope.of(HttpError(400, message), id))
            self.transport.write(HEAD % (status, id.encode()) + TAIL % (len(body), body))
            self.transport.close()

    def _close_after(self, seconds: float) -> None:
        self._cancel_timer()
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _cancel_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


def is_reset(found: socket.socket) -> bool:
    """Whether the other end has said that it is gone; the system knows, also while nobody reads."""
    poll = select.poll()
    poll.register(found.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def leave_unframed(cycle: RequestResponseCycle) -> None:
    """A response without a length is sent as it is: HTTP/1.0 knows no chunks, and its connections end with a response.

    uvicorn would chunk it all the same.
    """
    cycle.chunked_encoding = False
