"""One HTTP request and the way back to its client, on plain ASGI. Knows nothing of models or of the server."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import msgspec

from tahr.server.http.accounts import NOBODY, Account
from tahr.server.http.connection import (
    COMPLETE,
    CONNECTION,
    OFFER,
    ON_BEHALF,
    SLOWEST_BYTES_PER_S,
    SOCKET,
    UNFRAMED,
    Connection,
    UpgradeOffer,
)
from tahr.server.http.errors import Envelope, ErrorReply, HttpError
from tahr.server.http.records import RequestRecord

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Mapping[str, str]

JSON = "application/json"


class ClientGone(Exception):
    """The client has left, so no response can be sent."""


@dataclass(slots=True)
class BodyMemory:
    """Memory of all bodies together: many that are allowed each could take everything there is."""

    max_bytes: int
    n_bytes: int = 0

    def hold(self, n_bytes: int) -> None:
        """Reserve memory for a body; 503 when all bodies together exceed the limit."""
        if self.n_bytes + n_bytes > self.max_bytes:
            message = "The bodies of other requests take all the memory there is for them: try again later."
            raise HttpError(503, message, code="too_many_bodies", headers={"retry-after": "2", "connection": "close"})
        self.n_bytes += n_bytes


@dataclass(frozen=True, slots=True)
class OnBehalf:
    """Whose request it is, if the server makes it: a line of a batch, which gives way to all that clients wait for.

    It was let in when its batch was made, so it has no key.
    """

    owner: str
    salt: str
    account: Account


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits on a request's body."""

    max_bytes: int
    timeout_s: float
    memory: BodyMemory
    arriving: set["HttpRequest"]  # requests whose bodies are on their way


class HttpRequest:
    """A request, and the means to respond to it. `status` is 0 until a response has begun."""

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send, limits: BodyLimits):
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: str = scope.get("query_string", b"").decode("latin-1")
        self.client: str = (scope.get("client") or ("",))[0]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.response_headers: dict[str, str] = {}  # headers of every response to this request
        self.record = RequestRecord(self.method, self.path, self.headers)  # the observers' view
        self.error_reply: type[ErrorReply] = Envelope
        self.account = NOBODY  # until its key is checked
        self.is_of_any_page = False  # a browser sent it for a page that is let in as any other is
        self.status = 0
        self.data = b""  # the body, once it is read
        self._is_read = False
        self._n_held_bytes = 0
        self.load_s = 0.0  # time spent waiting for the model to be loaded
        self.on_behalf: OnBehalf | None = scope.get(ON_BEHALF)
        if self.on_behalf:
            self.account = self.on_behalf.account
        self._scope = scope
        self._receive = receive
        self._send = send
        self.limits = limits
        self.offer: UpgradeOffer | None = scope.get(OFFER)
        self.socket: int | None = scope.get(SOCKET)
        self._connection: Connection = scope[CONNECTION]
        self.send_chunk: Callable[[bytes], bool] = self._connection.send_chunk
        self.drained = self._connection.drained
        self._task: asyncio.Task[Any] | None = None
        self._cancel_reason: Exception | None = None
        self.end_early: Callable[[], None] | None = None  # ends a stream with what it has

    def header(self, name: str) -> str:
        """A header's value; empty if there is none."""
        value = self.headers.get(name.encode())
        return value.decode("latin-1") if value else ""

    # ---- the body ---------------------------------------------------------------------------------------------

    async def body(self) -> bytes:
        """The whole body, unless it is too large or too slow in coming; read once, however often it is asked for."""
        if self._is_read:
            return self.data
        self._check_coding()
        self._check_size(int(length) if (length := self.header("content-length")).isdigit() else 0)
        self.data = await (self._read() if self._scope.get(COMPLETE) else self._read_in_time())
        self._is_read = True
        self.record.arrived = perf_counter()
        return self.data

    async def _read_in_time(self) -> bytes:
        self.limits.arriving.add(self)
        try:
            with self.cancellable():
                async with asyncio.timeout(self.limits.timeout_s):
                    return await self._read()
        except TimeoutError:
            raise too_slow(f"The body did not arrive within {self.limits.timeout_s:g} seconds.") from None
        finally:
            self.limits.arriving.discard(self)

    async def _read(self) -> bytes:
        read = bytearray()  # one buffer: clients choose in how many pieces a body comes
        try:
            return await self._joined(read)
        finally:
            read.clear()  # the traceback of an error keeps this frame for longer than the memory is reserved

    async def _joined(self, read: bytearray) -> bytes:
        n_bytes = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece: bytes = message.get("body", b"")
            n_bytes += len(piece)
            self._check_size(n_bytes)
            self.limits.memory.hold(len(piece))
            self._n_held_bytes = n_bytes
            if not (read or message.get("more_body")):
                return piece
            read += piece
            if not message.get("more_body"):
                return bytes(read)

    async def stream_body(self, take: Callable[[bytes], Awaitable[None]], max_bytes: int) -> None:
        """Give the body to `take` piece by piece as it comes: nothing of it is kept, and its pace has a bound."""
        self._check_coding()
        check_size(int(length) if (length := self.header("content-length")).isdigit() else 0, max_bytes)
        self.limits.arriving.add(self)
        self._is_read = True
        try:
            with self.cancellable():
                await self._stream_body(take, max_bytes)
        finally:
            self.limits.arriving.discard(self)
        self.record.arrived = perf_counter()

    async def _stream_body(self, take: Callable[[bytes], Awaitable[None]], max_bytes: int) -> None:
        n_bytes = 0
        waited_s = 0.0  # without the time that it takes to use the pieces
        more = True
        while more:
            left_s = self.limits.timeout_s + n_bytes / SLOWEST_BYTES_PER_S - waited_s
            began = perf_counter()
            try:
                async with asyncio.timeout(max(0.0, left_s)):
                    message = await self._receive()
            except TimeoutError:
                raise too_slow(f"The body stopped coming after {n_bytes} bytes: send it again.") from None
            waited_s += perf_counter() - began
            if message["type"] == "http.disconnect":
                raise ClientGone
            n_bytes += len(message.get("body", b""))
            check_size(n_bytes, max_bytes)
            await take(message.get("body", b""))
            more = bool(message.get("more_body"))

    def release_body(self) -> None:
        """The request is over."""
        self.limits.memory.n_bytes -= self._n_held_bytes
        self._n_held_bytes = 0

    def _check_coding(self) -> None:
        coding = self.header("content-encoding").lower()
        if coding not in ("", "identity"):
            message = f"The body is compressed ({coding[:80]}), and this server takes plain ones: send it as it is."
            raise HttpError(415, message, code="unsupported_encoding", headers={"connection": "close"})

    def _check_size(self, n_bytes: int) -> None:
        check_size(n_bytes, self.limits.max_bytes)

    # ---- the response -----------------------------------------------------------------------------------------

    async def respond(
        self, body: bytes, content_type: str = JSON, status: int = 200, headers: Headers | None = None
    ) -> None:
        """A whole response."""
        await self._start(status, {"content-type": content_type, "content-length": str(len(body)), **(headers or {})})
        await self._send({"type": "http.response.body", "body": body})

    async def respond_json(self, value: Any, status: int = 200) -> None:
        """A whole response, as JSON."""
        await self.respond(msgspec.json.encode(value), status=status)

    async def respond_error(self, error: HttpError) -> None:
        """An error, in the shape of the route's API."""
        await self.respond(self.error_body(error), status=error.status, headers=error.headers)

    def error_body(self, error: HttpError) -> bytes:
        return msgspec.json.encode(self.error_reply.of(error, self.response_headers.get("x-request-id", "")))

    async def begin_stream(self, headers: Headers, status: int = 200) -> None:
        """A response that comes in chunks: `send_chunk`, `drained` where it returns False, at last `end_stream`."""
        if UNFRAMED in self._scope:
            self._scope[UNFRAMED]()
            self.send_chunk = self._connection.send_bytes
        await self._start(status, headers)

    async def send(self, data: bytes) -> None:
        """A chunk; waits while the client is slow to read."""
        if not self.send_chunk(data):
            await self.drained()

    async def end_stream(self, data: bytes = b"") -> None:
        """The last chunk."""
        if UNFRAMED in self._scope:
            self.send_chunk(data)
            data = b""
        await self._send({"type": "http.response.body", "body": data})

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        both = [*headers.items(), *self.response_headers.items()]
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in both]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    # ---- ends that come from outside --------------------------------------------------------------------------

    def cancellable(self) -> "Cancellable":
        """While inside, a client that leaves, a deadline or a shutdown ends the work with its own exception."""
        return Cancellable(self)

    def cancel(self, reason: Exception) -> None:
        """End the work, if it has not ended by itself; the first reason counts."""
        if self._cancel_reason is None:
            self._cancel_reason = reason  # a reason also ends work that is still to begin
            if self._task:
                self._task.cancel()

    def _on_lost(self) -> None:
        self.cancel(ClientGone())


@dataclass(frozen=True, slots=True)
class Cancellable:
    """Result of `HttpRequest.cancellable`; a generator would cost each request more."""

    request: HttpRequest

    def __enter__(self) -> None:
        request = self.request
        if request._cancel_reason:
            raise request._cancel_reason
        request._task = asyncio.current_task()
        assert request._task
        request._connection.add_lost_callback(request._on_lost)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        request = self.request
        task = request._task
        request._task = None
        request._connection.remove_lost_callback(request._on_lost)
        if isinstance(error, asyncio.CancelledError) and request._cancel_reason:
            assert task
            task.uncancel()
            raise request._cancel_reason from None


def check_size(n_bytes: int, most: int) -> None:
    if n_bytes > most:
        message = f"The body is larger than the {most} bytes this server takes: send less."
        raise HttpError(413, message, code="body_too_large", headers={"connection": "close"})


def too_slow(message: str) -> HttpError:
    return HttpError(400, message, headers={"connection": "close"})
