"""Just enough HTTP/1.1 to stream a response and to time each byte of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import httptools

from tahr.errors import ConfigError, ServerError

READ_BYTES = 1 << 16


class BrokenResponse(Exception):
    """The response ended too early, or was no HTTP."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server."""

    host: str
    port: int
    tls: bool = False
    path: str = ""
    api_key: str | None = None

    def head(self, method: str, path: str, n_bytes: int) -> bytes:
        """The request up to its body. A connection serves one request, so that none waits for another's bytes."""
        lines = [
            f"{method} {self.path}{path} HTTP/1.1", f"host: {self.host}:{self.port}", "connection: close",
            "content-type: application/json", f"content-length: {n_bytes}",
        ]  # fmt: skip
        if self.api_key:
            lines.append(f"authorization: Bearer {self.api_key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def parse_target(url: str, api_key: str | None = None) -> Target:
    """From a base URL, with or without the /v1 that OpenAI's clients put at its end."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--base-url {url} is not a URL ({error}): write http://127.0.0.1:8080.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--base-url {url} is not an HTTP address: write http://127.0.0.1:8080.")
    tls = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Target(parts.hostname, port or (443 if tls else 80), tls, path, api_key)


class Response:
    """A response while it arrives; the parser calls the methods whose names begin with on_."""

    def __init__(self, reader: asyncio.StreamReader):
        self.status = 0
        self.headers: dict[str, str] = {}
        self.sent_at = perf_counter()
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        self._complete = True

    async def arrivals(self) -> AsyncIterator[tuple[float, bytes]]:
        """When bytes of the body came, and which; the first has no bytes if the headers came alone."""
        while not self._complete:
            data = await self._reader.read(READ_BYTES)
            now = perf_counter()
            if not data:
                self._check_end()
                return
            self._feed(data)
            if self.status:
                yield now, b"".join(self._parts)
            self._parts.clear()

    async def body(self) -> bytes:
        """All of it."""
        return b"".join([data async for _, data in self.arrivals()])

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BrokenResponse(f"The response is no HTTP ({error}).") from error

    def _check_end(self) -> None:
        # Without a length of any kind the end of the connection is the end of the response.
        lengths = {"content-length", "transfer-encoding"}
        if not self.status or lengths & self.headers.keys():
            raise BrokenResponse("The connection was closed before the response was complete.")


@asynccontextmanager
async def sent(target: Target, method: str, path: str, body: Any = None) -> AsyncIterator[Response]:
    """Connect, then send: the clock of the response starts between the two."""
    data = b"" if body is None else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(target.host, target.port, ssl=target.tls or None)
    try:
        response = Response(reader)
        writer.write(target.head(method, path, len(data)) + data)
        await writer.drain()
        yield response
    finally:
        writer.close()


async def fetch(target: Target, method: str, path: str, body: Any = None) -> Any:
    """A whole JSON response, or an error that says what came instead."""
    where = f"{target.host}:{target.port}{target.path}{path}"
    try:
        async with sent(target, method, path, body) as response:
            data = await response.body()
    except OSError as error:
        raise ServerError(f"Nobody answers at {where} ({error}): start `tahr serve`, or name --base-url.") from error
    except BrokenResponse as error:
        raise ServerError(f"{where} gave no usable response: {error}") from error
    if response.status != 200:
        text = data[:200].decode(errors="replace")
        raise ServerError(f"{where} answered {response.status} instead of 200: {text}")
    try:
        return json.loads(data)
    except ValueError as error:
        raise ServerError(f"{where} answered something that is not JSON ({error}): is it an OpenAI server?") from error
