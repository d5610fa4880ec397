"""A client of WebSockets that does what it is told, right or wrong."""

import base64
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tahr.server.websocket.frames import Opcode, unmasked

KEY = base64.b64encode(bytes(16)).decode()
OFFER = {
    "connection": "keep-alive, Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": KEY,
}
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


def masked(kind: int, data: bytes, is_last: bool = True, mask: bytes | None = None) -> bytes:
    """A frame of a client."""
    key = os.urandom(4) if mask is None else mask
    n = len(data)
    if n <= 125:
        size = bytes([128 | n])
    else:
        size = bytes([254]) + n.to_bytes(2, "big") if n < 1 << 16 else bytes([255]) + n.to_bytes(8, "big")
    return bytes([128 * is_last | kind]) + size + key + unmasked(data, key)


class SocketClient:
    """One connection."""

    def __init__(self, address: str, path: str = "/v1/responses", **headers: str):
        self.raw = socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])), timeout=20)
        self._buffer = b""
        lines = {"host": "localhost", **OFFER, **headers}
        head = f"GET {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.raw.sendall(head.encode() + b"\r\n")
        self.head = self._until(b"\r\n\r\n").decode()
        self.status = int(self.head.split(" ")[1])

    def _fill(self) -> None:
        data = self.raw.recv(1 << 16)
        if not data:
            raise EOFError
        self._buffer += data

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._fill()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def _take(self, n_bytes: int) -> bytes:
        while len(self._buffer) < n_bytes:
            self._fill()
        taken, self._buffer = self._buffer[:n_bytes], self._buffer[n_bytes:]
        return taken

    def frame(self) -> tuple[Opcode, bytes]:
        """The next frame of the server."""
        first, n = self._take(2)
        assert first & 128 and not n & 128  # whole, and without a mask
        n = int.from_bytes(self._take({126: 2, 127: 8}[n]), "big") if n > 125 else n
        return Opcode(first & 15), self._take(n)

    def send(self, data: bytes) -> None:
        self.raw.sendall(data)

    def ask(self, **body: Any) -> None:
        """Send a request."""
        self.send(masked(Opcode.TEXT, json.dumps({"type": "response.create", **body}).encode()))

    def events(self) -> list[dict[str, Any]]:
        """The events of one reply."""
        made: list[dict[str, Any]] = []
        while not made or made[-1]["type"] not in ENDS:
            kind, data = self.frame()
            if kind is Opcode.TEXT:
                made.append(json.loads(data))
            else:
                assert kind is Opcode.PING, (kind, data)
        return made

    def reply(self, **body: Any) -> dict[str, Any]:
        """The last event of the reply to a request."""
        self.ask(**body)
        return self.events()[-1]

    def closed(self) -> int:
        """The code with which the server closes, whatever comes before; 0: without a word."""
        try:
            while True:
                kind, data = self.frame()
                if kind is Opcode.CLOSE:
                    return int.from_bytes(data[:2], "big")
        except (EOFError, ConnectionError):
            return 0

    def close(self) -> None:
        self.raw.close()


@contextmanager
def socket_to(address: str, **headers: str) -> Iterator[SocketClient]:
    """A connection that has become a WebSocket."""
    client = SocketClient(address, **headers)
    try:
        assert client.status == 101, client.head
        yield client
    finally:
        client.close()
