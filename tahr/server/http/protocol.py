"""HTTP/1.1 by httptools, with a bound on headers and on how long they may take to arrive."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tahr.server.http.connection import COMPLETE, LINE, Line, Packets
from tahr.server.http.errors import Refusal

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 20.0
HEAD = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
TOO_LARGE = b"431 Request Header Fields Too Large", "The headers are larger than 64 KiB: send less."


class BoundedProtocol(HttpToolsProtocol):
    """The parser itself would keep a header of any size, and wait for one forever."""

    _n_head_bytes = 0
    _in_body = False
    _only_head = True  # the data at hand
    _timer: asyncio.TimerHandle | None = None
    _n_listed_bytes = 0  # of the headers so far: a head may also come complete, all at once

    def connection_made(self, transport: Any) -> None:
        packets = Packets(transport, self.loop)
        super().connection_made(packets)  # type: ignore[arg-type]
        self._line = Line(packets, self.flow)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        self._only_head = not self._in_body
        super().data_received(data)
        self._n_head_bytes = self._n_head_bytes + len(data) if self._only_head else 0
        if self._n_head_bytes > MAX_HEAD_BYTES:
            self._refuse(*TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        self._refuse(b"400 Bad Request", "This is not HTTP/1.1 as the server understands it.")

    def on_message_begin(self) -> None:
        self._forget_timer()
        self._expect_head()
        self._n_listed_bytes = 0
        super().on_message_begin()
        self.scope[LINE] = self._line  # type: ignore[literal-required]

    def on_header(self, name: bytes, value: bytes) -> None:
        self._n_listed_bytes += len(name) + len(value) + 4
        if self._n_listed_bytes <= MAX_HEAD_BYTES:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._forget_timer()
        self._in_body = True
        self._only_head = False
        if self._n_listed_bytes > MAX_HEAD_BYTES:
            self._refuse(*TOO_LARGE)
        elif not self.transport.is_closing():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        self.scope[COMPLETE] = True  # type: ignore[literal-required]
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        super().connection_lost(exc)
        self._line.lost()

    def _refuse(self, status: bytes, message: str) -> None:
        if not self.transport.is_closing():
            body = Refusal(400, message).body
            self.transport.write(HEAD % (status, len(body), body))
            self.transport.close()

    def _expect_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _forget_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
