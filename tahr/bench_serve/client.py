"""Just enough HTTP/1.1 to stream a response and to time each byte of it."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import httptools

from tahr.errors import ConfigError, ServerError

OnBody = Callable[["Response", bytes], None]  # some bytes of its body


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
        """The request up to its body."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.path}{path} HTTP/1.1", f"host: {host}:{self.port}",
            "content-type: application/json", f"content-length: {n_bytes}",
        ]  # fmt: skip
        if self.api_key:
            lines.append(f"authorization: Bearer {self.api_key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()  # a key may have any letters


def parse_target(url: str, api_key: str | None = None) -> Target:
    """Parse a base URL, with or without the /v1 that OpenAI's clients put at its end."""
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
    """A response while it arrives; the parser calls the methods whose names begin with on_.

    `on_part` gets the bytes of its body as they come, at `now`, without a task that waits for them.
    """

    def __init__(self, on_part: OnBody):
        self.status = 0
        self.headers: dict[str, str] = {}
        self.sent_at = self.now = 0.0  # `now`: when the last bytes came
        self.keeps_alive = False  # the response is complete, and its connection may serve another request
        self._on_part = on_part
        self._parser = httptools.HttpResponseParser(self)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._on_part(self, data)

    def on_message_complete(self) -> None:
        self.keeps_alive = self._parser.should_keep_alive()
        self.end()

    def feed(self, data: bytes) -> None:
        """Bytes that have just come."""
        self.now = perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.end(BrokenResponse(f"The response is no HTTP ({error})."))

    def closed(self) -> None:
        """No more bytes come."""
        # Without a length of any kind the end of the connection is the end of the response.
        lengths = {"content-length", "transfer-encoding"}
        if not self.status or lengths & self.headers.keys():
            self.end(BrokenResponse("The connection was closed before the response was complete."))
        self.end()

    def end(self, error: Exception | None = None) -> None:
        """Let the task that waits for the end go on; the first end counts."""
        if self.ended.done():
            return
        if error:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)


class ClientConnection(asyncio.Protocol):
    """A connection that sends one request at a time."""

    def __init__(self) -> None:
        self.is_open = True
        self._response: Response | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport

    def data_received(self, data: bytes) -> None:
        if self._response:
            self._response.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._response:
            self._response.closed()

    async def send(self, data: bytes, response: Response) -> None:
        """Send a request, and wait until all of its response has come."""
        self._response = response
        response.sent_at = perf_counter()
        self.transport.write(data)
        try:
            if not self.is_open:
                response.closed()
            await response.ended
        finally:
            self._response = None
            self.is_open = self.is_open and response.keeps_alive
            if not self.is_open:
                self.transport.close()


class Connections:
    """Connections to one server. One whose request has ended serves the next, as those of real clients do."""

    def __init__(self, target: Target):
        self.target = target
        self._idle: list[ClientConnection] = []

    async def send(self, method: str, path: str, data: bytes, on_part: OnBody) -> Response:
        """A request, and its response when all of it has come; the clock of the response starts at its sending."""
        whole = self.target.head(method, path, len(data)) + data
        while connection := self._idle_one():
            response = Response(on_part)
            try:
                await self._use(connection, whole, response)
                return response
            except BrokenResponse:
                if response.status:
                    raise  # a server may close an idle connection
        response = Response(on_part)
        await self._use(await self._open(), whole, response)
        return response

    async def _use(self, connection: ClientConnection, data: bytes, response: Response) -> None:
        await connection.send(data, response)
        if connection.is_open:
            self._idle.append(connection)

    def _idle_one(self) -> ClientConnection | None:
        """An idle connection that nobody has closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _open(self) -> ClientConnection:
        create = asyncio.get_running_loop().create_connection
        target = self.target
        return (await create(ClientConnection, target.host, target.port, ssl=target.tls or None))[1]

    def close(self) -> None:
        """Close those that are idle."""
        while connection := self._idle_one():
            connection.transport.close()


def place_of(target: Target, path: str) -> str:
    return f"{target.host}:{target.port}{target.path}{path}"


async def fetch(target: Target, method: str, path: str, body: Any = None) -> Any:
    """A whole JSON response, or an error that says what came instead."""
    data = await fetch_bytes(target, method, path, body)
    try:
        return json.loads(data)
    except ValueError as error:
        where = place_of(target, path)
        raise ServerError(f"{where} answered something that is not JSON ({error}): is it an OpenAI server?") from error


async def fetch_bytes(target: Target, method: str, path: str, body: Any = None) -> bytes:
    """A whole response, or an error that says what came instead."""
    where = place_of(target, path)
    parts: list[bytes] = []
    connections = Connections(target)
    try:
        sent = b"" if body is None else json.dumps(body).encode()
        response = await connections.send(method, path, sent, lambda _, part: parts.append(part))
        data = b"".join(parts)
    except OSError as error:
        raise ServerError(f"Nobody answers at {where} ({error}): start `tahr serve`, or name --base-url.") from error
    except BrokenResponse as error:
        raise ServerError(f"{where} gave no usable response: {error}") from error
    finally:
        connections.close()
    if response.status != 200:
        text = data[:200].decode(errors="replace")
        raise ServerError(f"{where} answered {response.status} instead of 200: {text}")
    return data
