"""A model of a running server, with the part of `LLM` that a conversation needs."""

import http.client
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from time import perf_counter, sleep
from typing import Any
from urllib.parse import urlsplit

from tahr.cli.terminal.console import note
from tahr.config import UNLIMITED_TOKENS, SamplingParams, sampling_names
from tahr.engine.sequences.stats import RequestStats
from tahr.errors import ConfigError, GenerateError, ModelNotFound
from tahr.generation.outputs import Chunk, Completion
from tahr.grammar import Grammar
from tahr.text.replies.deltas import Delta, ReasoningDelta, ToolCallDelta, text_of, tool_calls_of

TIMEOUT_S = 120.0  # limit on silence; a server at work sends comments meanwhile
POLL_S = 0.3  # between two looks at a server that loads
MAX_LINE_BYTES = 1 << 24
MAX_REPLY_BYTES = 1 << 26
# How a request names the grammars of `tahr run`.
GRAMMAR_FIELDS = {
    "json_schema": "guided_json", "regex": "guided_regex", "choice": "guided_choice", "gbnf": "grammar",
    "lark": "guided_grammar",
}  # fmt: skip


class ServerClient:
    """Requests to one server."""

    def __init__(self, address: str, key_variables: Sequence[str] = ("TAHR_API_KEY",)):
        self._key_variables = key_variables  # the first that is set counts
        self._key = next(filter(None, map(os.environ.get, key_variables)), "")
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"--server {address} is not an address: write it as http://127.0.0.1:8080, and MODEL before --server."
            )
        self.address = f"{parts.scheme}://{parts.netloc}"
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._host = parts.netloc.rpartition("@")[2]
        self._is_secure = parts.scheme == "https"

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        return kind(self._host, timeout=TIMEOUT_S)

    def json(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The reply to a request as a value."""
        with closing(self._connect()) as connection, self._connected():
            return parsed(self._send(connection, path, body).read(MAX_REPLY_BYTES))

    def is_loading(self) -> bool:
        """Whether the server says that its models are not there yet."""
        with closing(self._connect()) as connection, self._connected():
            connection.request("GET", self._base + "/health")
            response = connection.getresponse()
            told = parsed(response.read(MAX_REPLY_BYTES))
        return response.status == 503 and isinstance(told, dict) and told.get("status") == "loading"

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
        """The events of a streamed reply. Closing the iterator hangs up, which stops the request."""
        with closing(self._connect()) as connection:
            response = self._send(connection, path, body)
            while line := self._line(response):
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                if line.startswith(b"data:"):
                    yield parsed(data)
        raise GenerateError(f"The server at {self.address} ended the reply before it was complete.")

    def _line(self, response: http.client.HTTPResponse) -> bytes:
        with self._connected():
            return response.readline(MAX_LINE_BYTES)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            raise GenerateError(f"The server at {self.address} ended the connection ({error}).") from error

    def _send(
        self, connection: http.client.HTTPConnection, path: str, body: Mapping[str, Any] | None
    ) -> http.client.HTTPResponse:
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            connection.request("GET" if data is None else "POST", self._base + path, data, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise GenerateError(
                f"No server answers at {self.address} ({error}): start one with `tahr serve`, or check the address."
            ) from error
        if response.status != 200:
            with self._connected():
                raise refusal(response.status, response.read(MAX_REPLY_BYTES), self._key_variables)
        return response


def parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise GenerateError("What answers there is not a server of the OpenAI API: it sends no JSON.") from error


@contextmanager
def reading() -> Iterator[None]:
    """For code that takes a reply to have the form of the OpenAI API."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise GenerateError(
            "What answers there is not a server of the OpenAI API: its replies look different."
        ) from error


def text_in(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def refusal(status: int, data: bytes, key_variables: Sequence[str]) -> GenerateError | ConfigError:
    """The server's own sentence."""
    try:
        message = text_in(json.loads(data)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        message = f"The server answered {status}."
    if status == 401:
        message = f"{message} {', or else '.join(key_variables)} is sent as the key."
    return GenerateError(message) if status >= 500 else ConfigError(message)


def loaded_cards(server: ServerClient) -> dict[str, Any]:
    """The models by their names, as soon as they are loaded."""
    waits = False
    while True:
        with reading():
            cards = {text_in(card["id"]): card for card in server.json("/v1/models")["data"]}
        if cards or not server.is_loading():
            return cards
        if not waits:
            note(f"The server at {server.address} is loading: waiting.")
        waits = True
        sleep(POLL_S)


class RemoteModel:
    """One model of a server. What is not asked for, the server decides."""

    sampling_defaults: SamplingParams | None = None  # the server's own, which it does not tell
    template: object = "the server's"
    load_log: Sequence[str] = ()

    def __init__(self, server: ServerClient, name: str | None):
        self._server = server
        cards = loaded_cards(server)
        alike = (card for card in cards if not name or card.lower() == name.lower())  # servers ignore case in names
        found = name if name in cards else next(alike, None)
        if found is None:
            there = ", ".join(cards) or "none"
            raise ModelNotFound(f"The server at {server.address} has no model {name or 'yet'}: it has {there}.")
        self.name = found
        with reading():
            self.context_size = int(cards[self.name].get("context_size") or cards[self.name].get("max_model_len") or 0)
        self.backend_summary = server.address

    def stream(self, prompt: str, params: SamplingParams) -> Iterator[Chunk]:
        return self._chunks("/v1/completions", {"prompt": prompt, **fields_of(params)})

    def stream_chat(self, messages: Sequence[Any], params: SamplingParams, **options: Any) -> Iterator[Chunk]:
        return self._chunks("/v1/chat/completions", {"messages": messages, **fields_of(params), **options})

    def encode_chat(self, messages: Sequence[Any], **options: Any) -> list[int]:
        """The tokens of a conversation; a server without a route for that is trusted to refuse what is too long."""
        tools = {"tools": options["tools"]} if "tools" in options else {}
        try:
            reply = self._server.json("/tokenize", {"model": self.name, "messages": messages, **tools})
        except (ConfigError, GenerateError):
            return []
        with reading():
            return list(reply["tokens"])

    def _chunks(self, path: str, body: dict[str, Any]) -> Iterator[Chunk]:
        body |= {"model": self.name, "stream": True, "stream_options": {"include_usage": True}}
        stats = RequestStats()
        reason = "stop"
        stats.started_at = stats.arrived_at
        seen: list[Delta] = []
        usage: dict[str, Any] = {}
        with closing(self._server.events(path, body)) as events:  # type: ignore[type-var]
            for event in events:
                with reading():
                    if "error" in event:
                        raise GenerateError(text_in(event["error"].get("message", "The server failed.")))
                    usage = event.get("usage") or usage
                    deltas, ended = read_event(event)
                reason = ended or reason
                if deltas:
                    stats.last_token_at = perf_counter()
                    stats.first_token_at = stats.first_token_at or stats.last_token_at
                    seen += deltas
                    yield Chunk(tuple(deltas), [])
        with reading():
            whole = completion_of(seen, reason, usage, stats)
        yield Chunk((), [], reason, whole)


def fields_of(params: SamplingParams) -> dict[str, Any]:
    """The settings that were asked for, as fields of a request."""
    requested = {name: getattr(params, name) for name in sampling_names() if params.asks_for(name)}
    if requested.get("max_tokens") == UNLIMITED_TOKENS:
        requested["max_tokens"] = -1
    return requested | (grammar_field(params.grammar) if params.grammar else {})


def grammar_field(grammar: Grammar) -> dict[str, Any]:
    if grammar.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    is_json = grammar.kind in ("json_schema", "choice")
    return {GRAMMAR_FIELDS[grammar.kind]: json.loads(grammar.source) if is_json else grammar.source}


def read_event(event: Mapping[str, Any]) -> tuple[list[Delta], str | None]:
    """Deltas of an event of a chat or of a completion, and the finish reason, if it is the last one."""
    if not event.get("choices"):
        return [], None
    choice = event["choices"][0]
    delta = choice.get("delta") or {"content": choice.get("text")}
    found: list[Delta] = []
    if delta.get("reasoning_content"):
        found.append(ReasoningDelta(text_in(delta["reasoning_content"])))
    if delta.get("content"):
        found.append(text_in(delta["content"]))
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        texts = (function.get("arguments"), call.get("id"), function.get("name"))
        arguments, call_id, name = (text_in(text or "") for text in texts)
        found.append(ToolCallDelta(int(call["index"]), arguments, call_id, name))
    if cut := choice.get("incomplete_tool_call"):
        found.append(ToolCallDelta(int(cut["index"]), is_cut=True))
    return found, choice.get("finish_reason") and text_in(choice["finish_reason"])


def completion_of(deltas: Sequence[Delta], reason: str, usage: Mapping[str, Any], stats: RequestStats) -> Completion:
    """The whole reply; times are those seen from here."""
    stats.n_prompt_tokens = int(usage.get("prompt_tokens") or 0)
    stats.n_generated_tokens = int(usage.get("completion_tokens") or 0)
    stats.n_cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    return Completion(
        text_of(deltas),
        [],
        stats.n_prompt_tokens,
        stats.n_cached_tokens,
        reason,
        stats,
        tool_calls=tool_calls_of(deltas),
    )
