"""Answers all lines of a file of requests, by the routes that a server has, without sockets."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from hashlib import blake2b
from time import monotonic
from typing import Any, BinaryIO

from msgspec import Raw

from tahr.errors import ServerError
from tahr.server.batches.lines import (
    ENVELOPE_BYTES,
    PIECE_BYTES,
    BatchRequest,
    InputLine,
    LineError,
    custom_id_of,
    parse,
    read_lines,
)
from tahr.server.batches.results import BatchFault, BatchResponse, BatchResult, ResultFiles, result_id
from tahr.server.http.connection import COMPLETE, CONNECTION, ON_BEHALF
from tahr.server.http.records import GenerationRecord
from tahr.server.http.request import OnBehalf, Receive, Send
from tahr.server.models.registry import Health
from tahr.server.observe.observer import Observer, Observers
from tahr.server.state.state import ServerState

PENDING_BYTES = 1 << 26  # limit on the requests in flight together; one alone may have more
RETRY_S = 1.0  # time between two attempts at a request that finds no room beside the others
BUSY_S = 600.0  # time after which it is refused all the same, if no other one ends meanwhile
AHEAD = 2  # requests in flight for each sequence of a batch: the next are tokenised by the time there is room
Message = MutableMapping[str, Any]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class NoClient:
    """In the place of a connection: nobody leaves, and nothing is streamed."""

    def add_lost_callback(self, callback: Callable[[], None]) -> None: ...
    def remove_lost_callback(self, callback: Callable[[], None]) -> None: ...
    def send_chunk(self, data: bytes) -> bool:
        raise AssertionError("streams are refused")

    async def drained(self) -> None: ...


@dataclass
class Exchange:
    """A request on its way through the application."""

    path: str
    body: bytes
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    reply: bytes = b""
    on_behalf: OnBehalf | None = None

    @property
    def scope(self) -> Message:
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        about = {"type": "http", "method": "POST", "path": self.path, "client": ("127.0.0.1", 0)}
        return {**about, "headers": headers, CONNECTION: NoClient(), COMPLETE: True, ON_BEHALF: self.on_behalf}

    @property
    def is_overloaded(self) -> bool:
        """Whether a client of a server would come again later."""
        return self.status in (429, 503) and b"retry-after" in self.headers

    @property
    def is_out_of_tokens(self) -> bool:
        """Whether its key has used its tokens of the day."""
        return self.status == 429 and self.headers.get(b"x-should-retry") == b"false"

    async def receive(self) -> Message:
        return {"type": "http.request", "body": self.body}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])
        else:
            self.reply += message["body"]


def is_cancelled() -> bool:
    """Whether somebody ends the run. The application answers a cancelled request as one that has no server."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class TokenCount(Observer):
    """Tokens of all requests so far."""

    def __init__(self) -> None:
        self.n_prompt = self.n_output = 0

    def generation_finished(self, record: GenerationRecord, seconds: float) -> None:
        self.n_prompt += record.n_prompt_tokens
        self.n_output += record.n_tokens


def n_to_do(requests: BinaryIO, files: ResultFiles) -> int:
    """Lines without a result; refused if there are results of other lines."""
    return sum(not files.is_done(line) for line in read_lines(requests, PIECE_BYTES))


class BatchRun:
    """One run over a file of requests. What earlier runs have done is left out."""

    busy_s = BUSY_S
    on_behalf: OnBehalf | None = None  # whose requests these are, where clients wait for others

    def __init__(self, app: Application, state: ServerState, requests: BinaryIO, files: ResultFiles):
        self.n_replies = self.n_errors = 0
        self.is_out_of_tokens = False  # no further line is begun
        self._state = state
        self._app = app
        self._requests = requests
        self._files = files
        self._names: set[int] = set()  # digests of all names so far
        self._n_bytes = 0  # memory of the requests in flight
        self._freed = asyncio.Event()

    @property
    def most_bytes(self) -> int:
        """The longest line."""
        settings = self._state.settings
        reads_images = any(model.engine.inputs.reads_images for model in self._state.models.loaded)
        body_bytes = max(settings.max_image_body_bytes, settings.max_body_bytes) if reads_images else 0
        return max(body_bytes, settings.max_body_bytes) + ENVELOPE_BYTES

    @property
    def n_at_once(self) -> int:
        """Requests in flight."""
        n_running = sum(model.engine.snapshot().max_batch_size for model in self._state.models.loaded)
        return min(AHEAD * max(1, n_running), self._state.settings.max_requests)

    async def run(self, on_result: Callable[[], None]) -> None:
        """Answer all lines that have no result yet. An end from outside leaves those in flight to the next run."""
        slots = asyncio.Semaphore(self.n_at_once)
        try:
            async with asyncio.TaskGroup() as group:
                lines = read_lines(self._requests, self.most_bytes)
                while item := await self._next(lines):
                    line, request = item
                    if self._files.is_done(line):
                        continue
                    await slots.acquire()
                    n_bytes = len(line.data or b"")
                    await self._has_memory(n_bytes)
                    task = group.create_task(self._run_line(line, request, on_result))
                    task.add_done_callback(lambda _, n=n_bytes: self._free(slots, n))  # type: ignore[misc]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _next(self, lines: Iterator[InputLine]) -> tuple[InputLine, BatchRequest | LineError] | None:
        """The next line, if there is one and it may be begun."""
        return self._read_next(lines)

    def _read_next(self, lines: Iterator[InputLine]) -> tuple[InputLine, BatchRequest | LineError] | None:
        line = None if self.is_out_of_tokens else next(lines, None)
        return line and (line, self._request_of(line))

    async def _has_memory(self, n_bytes: int) -> None:
        while self._n_bytes and self._n_bytes + n_bytes > PENDING_BYTES:
            self._freed.clear()
            await self._freed.wait()
        self._n_bytes += n_bytes

    def _free(self, slots: asyncio.Semaphore, n_bytes: int) -> None:
        self._n_bytes -= n_bytes
        self._freed.set()
        slots.release()

    def _request_of(self, line: InputLine) -> BatchRequest | LineError:
        """The request of a line, or what is wrong with it; the first of those with one name counts."""
        try:
            request = parse(line.data, self.most_bytes)
        except LineError as error:
            return error
        name = int.from_bytes(blake2b(request.custom_id.encode(), digest_size=8).digest())
        if name in self._names:
            message = f"An earlier line has the custom_id {request.custom_id[:80]!r}, too: give each its own."
            return LineError("duplicate_custom_id", message)
        self._names.add(name)
        return request

    async def _run_line(
        self, line: InputLine, request: BatchRequest | LineError, on_result: Callable[[], None]
    ) -> None:
        result = BatchResult(result_id(line), custom_id_of(line.data))
        if isinstance(request, LineError):
            result.error = BatchFault(request.code, str(request))
        else:
            result.response = await self._respond(request)
            if result.response is None or is_cancelled():
                return
        self._files.write(result)
        self.n_replies += result.is_reply
        self.n_errors += not result.is_reply
        on_result()

    async def _respond(self, request: BatchRequest) -> BatchResponse | None:
        """The response; None where the line is left to a later run."""
        exchange = await self._exchange(request)
        seen = self.n_replies + self.n_errors
        until = monotonic() + self.busy_s
        while exchange.is_overloaded and not is_cancelled() and monotonic() < until:
            if exchange.is_out_of_tokens:
                self.is_out_of_tokens = True
                return None
            await asyncio.sleep(RETRY_S)
            if seen != self.n_replies + self.n_errors:  # others end, and make room
                seen = self.n_replies + self.n_errors
                until = monotonic() + self.busy_s
            exchange = await self._exchange(request)
        if exchange.status >= 500 and self._state.models.health() is Health.FAILING:
            raise ServerError("The engine has failed. What is answered is kept: the same command goes on from there.")
        request_id = exchange.headers.get(b"x-request-id", b"").decode("latin-1")
        return BatchResponse(exchange.status, request_id, Raw(exchange.reply))

    async def _exchange(self, request: BatchRequest) -> Exchange:
        exchange = Exchange(request.url, bytes(request.body), on_behalf=self.on_behalf)
        await self._app(exchange.scope, exchange.receive, exchange.send)
        return exchange


class LoneRun(BatchRun):
    """A run of a process that does nothing else."""

    def __init__(self, app: Application, state: ServerState, requests: BinaryIO, files: ResultFiles):
        self.tokens = TokenCount()
        state.observers.close()
        state.observers = Observers([self.tokens])
        super().__init__(app, state, requests, files)
