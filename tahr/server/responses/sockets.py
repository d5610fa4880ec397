"""/v1/responses over a WebSocket: each message is a request, answered before the next, whose events are messages."""

import itertools
import logging
from collections import deque
from collections.abc import MutableMapping
from typing import Any

import msgspec
from msgspec import Struct

from tahr.server.bodies.decoding import MALFORMED
from tahr.server.http.connection import COMPLETE, CONNECTION, SOCKET, Connection, UpgradeOffer
from tahr.server.http.errors import TYPES, HttpError
from tahr.server.http.request import ClientGone, HttpRequest
from tahr.server.http.sse import encode
from tahr.server.state.state import ServerState
from tahr.server.websocket.frames import Close, FrameError
from tahr.server.websocket.handshake import accepting_head
from tahr.server.websocket.socket import HeldBytes, WebSocket

PROTOCOL = "websocket"
PATH = "/v1/responses"
MAX_WAITING = 4  # messages that wait for the reply to the one before
SMALL_BYTES = 1 << 16  # messages whose type is looked at before they are read
# headers of the handshake that requests do not have
OWN_HEADERS = ("connection", "upgrade", "content-length", "content-encoding", "transfer-encoding", "expect")
log = logging.getLogger("tahr.server")
_numbers = itertools.count(1)


class EventType(Struct):
    """The type of a message."""

    type: str


async def open_socket(request: HttpRequest, state: ServerState) -> None:
    """Make the connection a WebSocket, unless there are too many."""
    offer = request.offer
    assert offer
    head = accepting_head(request.headers, request.response_headers["x-request-id"])
    state.models.check_ready()
    if state.n_sockets >= state.settings.max_websockets:
        message = f"This server has {state.n_sockets} WebSockets, and takes no more: try again later, or use HTTP."
        raise HttpError(503, message, code="websocket_connection_limit_reached", headers={"retry-after": "5"})
    if state.is_draining:
        raise state.models.unavailable()
    turns = SocketTurns(request, state, offer)
    offer.switch(head, turns.socket)
    log.info("websocket opened number=%d", turns.number)
    request.status = 101
    request.data = b""


class SocketConnection(Connection):
    """The connection of a WebSocket as its requests see it: they send server-sent events, the client gets messages."""

    socket: WebSocket

    def send_chunk(self, data: bytes) -> bool:
        keeps_up = True
        for event in data.split(b"\n\n"):
            _, is_event, fields = event.partition(b"data: ")
            if is_event:
                keeps_up = self.socket.send_text(fields)
            elif event:
                self.socket.send_ping()  # the comment of a silent stream
        return keeps_up


class SocketTurns:
    """The requests of one WebSocket, one after the other."""

    def __init__(self, handshake: HttpRequest, state: ServerState, offer: UpgradeOffer):
        self.number = next(_numbers)
        self._state = state
        self._offer = offer
        self._client = handshake.client
        self._headers = {name: value for name, value in handshake.headers.items() if name.decode() not in OWN_HEADERS}
        self._waiting: deque[bytes] = deque()
        self._held = HeldBytes(handshake.limits.memory)
        self._connection = SocketConnection(offer.transport, offer.flow)
        self._is_lost = False
        self.is_busy = False
        self.socket = WebSocket(offer.transport, offer.flow, handshake.limits, self)
        self._connection.socket = self.socket
        self._count(1)

    # ---- what comes -------------------------------------------------------------------------------------------

    def take(self, text: bytes) -> None:
        """A message; it waits while another is answered."""
        if not self.is_busy:
            self.is_busy = True
            return self._offer.start(self._run(text))
        if len(self._waiting) >= MAX_WAITING:
            raise FrameError(Close.POLICY, f"{MAX_WAITING} requests wait already: send the next when one is answered.")
        self._waiting.append(text)
        self._hold()
        return None

    def lost(self) -> None:
        """The client has left."""
        if self._is_lost:
            return
        self._is_lost = True
        self._count(-1)
        self._state.recent.forget(self.number)
        self._waiting.clear()
        self._hold()
        self._connection.lost()

    def _count(self, change: int) -> None:
        self._state.n_sockets += change
        self._state.metrics.websockets.add((), change)

    def _hold(self) -> None:
        self._held.set(sum(map(len, self._waiting)))

    # ---- what becomes of it -----------------------------------------------------------------------------------

    async def _run(self, text: bytes) -> None:
        await self._reply(text)
        while self._waiting:
            text = self._waiting.popleft()
            self._hold()
            await self._reply(text)
        self.is_busy = False
        if self._state.is_draining:
            self.socket.close()

    async def _reply(self, text: bytes) -> None:
        try:
            kind = type_of(text)
        except HttpError as error:
            return self.send_error(error.status, encode(fields_of(error)), {})
        if kind == "response.processed":
            return None  # a confirmation of events that nobody keeps
        return await self._offer.app(self._scope(), Body(text).receive, Reply(self).send)

    def _scope(self) -> MutableMapping[str, Any]:
        about = {"type": "http", "method": "POST", "path": PATH, "client": (self._client, 0), "http_version": "1.1"}
        own = {CONNECTION: self._connection, COMPLETE: True, SOCKET: self.number}
        return {**about, "headers": list(self._headers.items()), **own}

    def send_error(self, status: int, error: bytes, headers: dict[str, str]) -> None:
        """Send an event in place of a response with a status that is not 200."""
        event = {"type": "error", "status": status, "error": msgspec.Raw(error), "headers": headers}
        self.socket.send_text(encode(event))

    @property
    def is_lost(self) -> bool:
        return self._is_lost


class Body:
    """A message as the body of a request."""

    def __init__(self, text: bytes):
        self._text = text

    async def receive(self) -> MutableMapping[str, Any]:
        text = self._text
        self._text = b""
        return {"type": "http.request", "body": text}


class Reply:
    """The way of a response: events, or one error."""

    def __init__(self, turns: SocketTurns):
        self._turns = turns
        self._status = 0
        self._headers: dict[str, str] = {}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if self._turns.is_lost:
            raise ClientGone
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
        elif self._status == 200:
            self._turns._connection.send_chunk(message["body"])
        else:
            self._turns.send_error(self._status, error_in(message["body"]), told(self._headers))


class Failed(Struct):
    """The body of a response that is an error."""

    error: msgspec.Raw


def error_in(body: bytes) -> bytes:
    return bytes(msgspec.json.decode(body, type=Failed).error)


def told(headers: dict[str, str]) -> dict[str, str]:
    """The headers that matter to a client of a WebSocket."""
    return {name: headers[name] for name in ("retry-after", "x-request-id") if name in headers}


def fields_of(error: HttpError) -> dict[str, Any]:
    return {"message": error.message, "type": TYPES[error.status], "param": error.param, "code": error.code}


def type_of(text: bytes) -> str:
    """The type of a short message; a long one can only be a request."""
    if len(text) > SMALL_BYTES:
        return "response.create"
    try:
        kind = msgspec.json.decode(text, type=EventType).type
    except MALFORMED as error:
        raise HttpError(400, f"The message is no event ({error}): send an object with a type.") from None
    if kind not in ("response.create", "response.processed"):
        message = f"There is no event {kind[:64]!r} here: send response.create."
        raise HttpError(400, message, param="type", code="unsupported")
    return kind
