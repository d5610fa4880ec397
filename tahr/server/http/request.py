"""One HTTP request and the way back to its client, on plain ASGI."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from tahr.server.http.connection import COMPLETE, LINE, Line
from tahr.server.http.errors import Refusal

if TYPE_CHECKING:
    from tahr.server.observe.server_metrics import Meter
    from tahr.server.openai.generation import Ask
    from tahr.server.state import Front

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Mapping[str, str]

JSON = "application/json"


class ClientGone(Exception):
    """The client has left, so there is nobody to tell anything."""


class Call:
    """What a route gets: the request, and how to answer it. `status` is 0 until an answer has begun."""

    def __init__(self, front: "Front", scope: MutableMapping[str, Any], receive: Receive, send: Send):
        self.front = front
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.client: str = (scope.get("client") or ("",))[0]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.more_headers: dict[str, str] = {}  # that every answer to this request gets
        self.status = 0
        self.data = b""  # the body, once it is read
        self.ask: Ask | None = None  # what is generated for it, and what that has cost so far
        self.meter: Meter | None = None
        self._scope, self._receive, self._send = scope, receive, send
        self._line: Line | None = scope.get(LINE)
        self._held = b""  # what waits to be sent, where there is no line
        self._task: asyncio.Task[Any] | None = None
        self._reason: Exception | None = None

    def header(self, name: str) -> str:
        """A header's value; empty if there is none."""
        return self.headers.get(name.encode(), b"").decode("latin-1")

    # ---- the request ------------------------------------------------------------------------------------------

    async def body(self) -> bytes:
        """The whole body, unless it is too large or too slow in coming."""
        settings = self.front.settings
        self._check_size(int(length) if (length := self.header("content-length")).isdigit() else 0)
        try:
            async with asyncio.timeout(None if self._scope.get(COMPLETE) else settings.body_timeout_s):
                self.data = await self._read()
                return self.data
        except TimeoutError:
            message = f"The body did not arrive within {settings.body_timeout_s:g} seconds."
            raise Refusal(400, message, headers={"connection": "close"}) from None

    async def _read(self) -> bytes:
        parts: list[bytes] = []
        n_bytes = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            n_bytes += len(parts[-1])
            self._check_size(n_bytes)
            if not message.get("more_body"):
                return b"".join(parts)

    def _check_size(self, n_bytes: int) -> None:
        most = self.front.settings.max_body_bytes
        if n_bytes > most:
            message = f"The body is larger than the {most} bytes this server takes: send less."
            raise Refusal(413, message, code="body_too_large", headers={"connection": "close"})

    # ---- the answer -------------------------------------------------------------------------------------------

    async def reply(self, body: bytes, kind: str = JSON, status: int = 200, headers: Headers | None = None) -> None:
        """A whole answer."""
        await self._start(status, {"content-type": kind, "content-length": str(len(body)), **(headers or {})})
        await self._send({"type": "http.response.body", "body": body})

    async def json(self, value: Any, status: int = 200) -> None:
        """A whole answer, as JSON."""
        await self.reply(msgspec.json.encode(value), status=status)

    async def refuse(self, refusal: Refusal) -> None:
        """The error envelope."""
        await self.reply(refusal.body, status=refusal.status, headers=refusal.headers)

    async def begin(self, headers: Headers) -> None:
        """An answer that comes in pieces."""
        await self._start(200, headers)

    async def write(self, data: bytes) -> None:
        """A piece; waits while the client is slow to read."""
        if not self.put(data):
            await self.drained()

    def put(self, data: bytes) -> bool:
        """A piece, at once; if the client does not keep up, `drained` is to be waited for before the next."""
        if self._line:
            return self._line.put(data)
        self._held += data
        return False

    async def drained(self) -> None:
        """Wait until the client has read most of what it was sent."""
        if self._line:
            return await self._line.drained()
        held, self._held = self._held, b""
        return await self._send({"type": "http.response.body", "body": held, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """The last piece."""
        held, self._held = self._held, b""
        await self._send({"type": "http.response.body", "body": held + data})

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        both = [*headers.items(), *self.more_headers.items()]
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in both]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    # ---- ends that come from outside --------------------------------------------------------------------------

    @asynccontextmanager
    async def interruptible(self) -> AsyncIterator[None]:
        """While inside, a client that leaves, a deadline or a shutdown ends the work with its own exception."""
        self._task = task = asyncio.current_task()
        assert task
        watch = None if self._line else asyncio.create_task(self._watch())
        try:
            if self._line:
                self._line.watch(self._leave)
            yield
        except asyncio.CancelledError:
            if self._reason is None:
                raise
            task.uncancel()
            raise self._reason from None
        finally:
            self._task = None
            if self._line:
                self._line.unwatch(self._leave)
            elif watch:
                watch.cancel()

    def interrupt(self, reason: Exception) -> None:
        """End the work, if it has not ended by itself; the first reason counts."""
        if self._task and self._reason is None:
            self._reason = reason
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        self.interrupt(ClientGone())
