"""One request: what was sent, when its tokens came, and what was wrong with the response."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import msgspec

from tahr.bench_serve.client import BrokenResponse, Connections, Response

# All that can be wrong with a response. Only the last leaves the request a success.
FAULTS = {
    "http_500": "the server failed (any status from 500)",
    "http_refused": "another status than 200",
    "connection_failed": "no connection, or a broken one",
    "timeout": "no end within --timeout",
    "panic": "an error in the middle of the stream",
    "malformed_stream": "not server-sent events of JSON, cut off, or without usage",
    "missing_done": "the stream ended without [DONE]",
    "duplicate_done": "[DONE] came more than once, or something came after it",
    "zero_output_tokens": "no tokens, or no text",
    "bad_output": "not the number of tokens that was asked for or counted, or nothing readable",
    "stream_bulk_flush": "eight tokens or more, all at once",
}
HARMLESS = {"stream_bulk_flush"}
# nobody generates that fast, but the network may cut a flush in two
BULK_TOKENS = 8
BULK_S_PER_TOKEN = 50e-6
DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Load:
    """One request to be: its route and body; how many tokens its prompt has (None: a template adds its own)."""

    path: str
    body: dict[str, Any]
    n_output: int
    n_prompt: int | None = None
    data: bytes = b""  # the body as it is sent

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", msgspec.json.encode(self.body))

    def allows(self, n_output: int) -> bool:
        """Whether so many tokens are what was asked for."""
        return n_output == self.n_output or (n_output < self.n_output and not self.body.get("ignore_eos"))


@dataclass(slots=True)
class Record:
    """Course of one request. Times are of one monotonic clock, in seconds."""

    sent_at: float
    ended_at: float = 0.0
    text_at: list[float] = field(default_factory=list)  # times of chunks with text
    n_prompt: int = 0
    n_output: int = 0  # the server's count
    faults: list[str] = field(default_factory=list)
    detail: str = ""  # the first thing that went wrong, in a sentence

    @property
    def ok(self) -> bool:
        return not set(self.faults) - HARMLESS

    @property
    def ttft_s(self) -> float:
        """Time to first token: from sending to the first chunk that has text; a role alone is no token."""
        return self.text_at[0] - self.sent_at

    @property
    def e2el_s(self) -> float:
        """End-to-end latency."""
        return self.ended_at - self.sent_at

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; a single token has none."""
        return (self.e2el_s - self.ttft_s) / (self.n_output - 1) if self.n_output > 1 else None

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies: the gaps between chunks."""
        return [after - before for before, after in zip(self.text_at, self.text_at[1:], strict=False)]

    def blame(self, fault: str, detail: str) -> None:
        """Note what is wrong, once per kind."""
        assert fault in FAULTS
        if fault not in self.faults:
            self.faults.append(fault)
        self.detail = self.detail or detail


@dataclass(slots=True)
class Events:
    """The server-sent events of one response, put together from the pieces they arrive in."""

    data: list[str] = field(default_factory=list)
    _rest: bytes = b""

    def feed(self, data: bytes) -> list[str]:
        """The data of all events that are now complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            text = line.rstrip(b"\r").decode("utf-8", "replace")
            if text.startswith("data:"):
                self.data.append(text[5:].removeprefix(" "))
            elif not text and self.data:
                found.append("\n".join(self.data))
                self.data = []
        return found

    @property
    def unfinished(self) -> bool:
        return bool(self.data or self._rest.strip())


async def measure(connections: Connections, load: Load, timeout_s: float) -> Record:
    """Send one request and record its response; never raises for what a server does."""
    record = Record(perf_counter())
    reader = EventStreamReader(record)
    refusal = list[bytes]()

    def on_part(response: Response, data: bytes) -> None:
        if response.status == 200:
            reader.feed(response.now, data)
        else:
            refusal.append(data)

    try:
        async with asyncio.timeout(timeout_s):
            response = await connections.send("POST", load.path, load.data, on_part)
        record.sent_at = response.sent_at
        if response.status == 200:
            reader.judge(load, response.headers.get("content-type", ""))
        else:
            fault = "http_500" if response.status >= 500 else "http_refused"
            said = b"".join(refusal)[:200].decode(errors="replace")
            record.blame(fault, f"Status {response.status}: {said}")
    except TimeoutError:
        record.blame("timeout", f"No end after {timeout_s:g} seconds.")
    except BrokenResponse as error:
        record.blame("malformed_stream", str(error))
    except OSError as error:
        record.blame("connection_failed", f"The connection failed: {error}.")
    if not record.ok or not record.ended_at:  # a failed request lasted until it was given up
        record.ended_at = perf_counter()
    return record


class EventStreamReader:
    """Reads one stream into a record."""

    def __init__(self, record: Record):
        self.record = record
        self._events = Events()
        self._usage: dict[str, Any] | None = None
        self._text = ""
        self._n_done = 0

    def feed(self, at: float, data: bytes) -> None:
        """Bytes that came at one moment."""
        for event in self._events.feed(data):
            self.record.ended_at = at
            if event == DONE:
                self._n_done += 1
            elif self._n_done:
                self.record.blame("duplicate_done", "Something came after [DONE].")
            else:
                self._read_chunk(at, event)

    def _read_chunk(self, at: float, event: str) -> None:
        try:
            chunk = msgspec.json.decode(event)
            if "error" in chunk:
                return self.record.blame("panic", f"The stream says: {event[:200]}")
            self._usage = chunk.get("usage") or self._usage
            text = "".join(text_of(choice) for choice in chunk["choices"])
        except (msgspec.DecodeError, TypeError, KeyError, AttributeError):
            return self.record.blame("malformed_stream", f"This event is no chunk: {event[:200]}")
        if text:
            self._text += text
            self.record.text_at.append(at)
        return None

    def judge(self, load: Load, kind: str) -> None:
        """Everything that can be said only at the end."""
        record = self.record
        if not kind.startswith("text/event-stream"):
            record.blame("malformed_stream", f"The response is of type {kind!r}, not text/event-stream.")
        if self._events.unfinished:
            record.blame("malformed_stream", "The stream ends inside an event.")
        if self._n_done != 1:
            fault = "duplicate_done" if self._n_done else "missing_done"
            record.blame(fault, f"[DONE] came {self._n_done} times.")
        self._judge_tokens(load)

    def _judge_tokens(self, load: Load) -> None:
        record = self.record
        counts = count_in(self._usage, "prompt_tokens"), count_in(self._usage, "completion_tokens")
        if counts[0] is None or counts[1] is None:
            return record.blame("malformed_stream", "The stream has no usage, so its tokens cannot be counted.")
        record.n_prompt = counts[0]
        record.n_output = counts[1]
        if not record.n_output or not record.text_at:
            record.blame("zero_output_tokens", f"{record.n_output} tokens in {len(record.text_at)} chunks of text.")
        elif not load.allows(record.n_output):
            record.blame("bad_output", f"{record.n_output} tokens came, but {load.n_output} were asked for.")
        elif load.n_prompt not in (None, record.n_prompt):
            record.blame("bad_output", f"{load.n_prompt} prompt tokens were sent, {record.n_prompt} were counted.")
        elif not self._text.strip("\ufffd\0"):
            record.blame("bad_output", "The text holds no readable character.")
        if record.text_at and is_bulk(record.n_output, record.text_at[-1] - record.text_at[0]):
            record.blame("stream_bulk_flush", f"{record.n_output} tokens came at one moment.")
        return None


def is_bulk(n_tokens: int, took_s: float) -> bool:
    return n_tokens >= BULK_TOKENS and took_s <= n_tokens * BULK_S_PER_TOKEN


def text_of(choice: dict[str, Any]) -> str:
    """Text of a chunk in a chat (reasoning included) or a completion."""
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text") or ""
    return (delta.get("reasoning_content") or delta.get("reasoning") or "") + (delta.get("content") or "")


def count_in(usage: dict[str, Any] | None, name: str) -> int | None:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None


def faults_of(records: list[Record]) -> dict[str, int]:
    """How often each fault came, those that never came included."""
    counted = Counter(fault for record in records for fault in record.faults)
    return {fault: counted[fault] for fault in FAULTS}
