"""A client that costs as little as Python can: one answer at a time per connection, hardly a look at its bytes."""

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

LENGTH = b"content-length: "


def request(path: str, body: dict[str, Any] | None = None) -> bytes:
    """A whole request, ready to be sent many times."""
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: localhost\r\n"
    return head.encode() + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data


class Connection(asyncio.Protocol):
    """One keep-alive connection."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._answer: asyncio.Future[bytes] | None = None
        self._left = -1  # bytes of a body whose length is known; -1: not known yet, or it comes in chunks

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self, data: bytes) -> "asyncio.Future[bytes]":
        """Send a request; the answer is given as it came, headers and chunk sizes included."""
        self._parts, self._left = [], -1
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self._answer

    def data_received(self, data: bytes) -> None:
        if not self._parts and (at := data.find(LENGTH)) >= 0:
            end = data.index(b"\r\n\r\n", at)
            self._left = int(data[at + len(LENGTH) : data.index(b"\r\n", at)]) - (len(data) - end - 4)
        elif self._left >= 0:
            self._left -= len(data)
        self._parts.append(data)
        if self._left == 0 or (self._left < 0 and data.endswith(b"0\r\n\r\n")):
            self._give(b"".join(self._parts))

    def connection_lost(self, exc: Exception | None) -> None:
        self._give(b"".join(self._parts))

    def _give(self, data: bytes) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_result(data)

    @property
    def n_bytes(self) -> int:
        """Of the answer, so far."""
        return sum(map(len, self._parts))


async def connect(address: str) -> Connection:
    """A connection to a server given as http://host:port."""
    parts = urlsplit(address)
    _, connection = await asyncio.get_running_loop().create_connection(Connection, parts.hostname, parts.port)
    return connection


def body_of(answer: bytes) -> bytes:
    """An answer without its headers and chunk sizes."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head:
        return rest
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size or b"0", 16)])
        rest = rest[len(parts[-1]) + 2 :]
    return b"".join(parts)


def ended_well(answer: bytes) -> bool:
    """A success, and if it is a stream, one that came to its end."""
    whole = b"text/event-stream" not in answer or answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    return answer.startswith(b"HTTP/1.1 200") and whole


def events_of(answer: bytes) -> list[dict[str, Any]]:
    """The events of a stream but [DONE]."""
    lines = body_of(answer).split(b"\n\n")
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def text_of(answer: bytes) -> str:
    """What the first choice of a streamed chat says."""
    choices = [choice for event in events_of(answer) for choice in event.get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
