"""How a response looks, in a stream and whole."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tahr.server.http.errors import HttpError
from tahr.server.http.sse import HEADERS, KEEP_ALIVE, encode, named_event
from tahr.server.models.engine_port import EngineStream, PromptProgress
from tahr.server.replies.formatter import ChoiceOutput, ReplyOptions, Usage
from tahr.server.responses.fields import FunctionNames
from tahr.server.responses.output import Item, new_item
from tahr.server.responses.replies import OutputItem, ResponseFailure, ResponseReply, ResponseUsage
from tahr.text.replies.deltas import Delta, kind_of, merge

if TYPE_CHECKING:
    from tahr.generation.outputs import Chunk
    from tahr.text.tokens.tokenizer import Tokenizer

TEXT = kind_of("")
INCOMPLETE = {"length": "max_output_tokens", "abort": "abort"}  # keys are finish reasons


def new_id(prefix: str) -> str:
    """No secret: asking the system for one takes long. Who may see a response is a matter of keys."""
    return f"{prefix}_{random.getrandbits(128):032x}"


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """A request's options for its reply."""

    repeated: Mapping[str, Any]  # fields of the reply that repeat those of the request
    names: FunctionNames
    as_summary: bool = False  # thoughts come as a summary
    keep: Callable[[ResponseReply], None] | None = None  # called with a finished reply
    is_ahead: bool = False  # only the prompt is computed: without output it is complete


class ResponseFormatter:
    """`response` and its events. An item begins where the kind of the deltas changes."""

    has_logprobs = False
    headers: Mapping[str, str] = HEADERS
    keep_alive = KEEP_ALIVE

    def __init__(self, requested: ResponseOptions, tokenizer: "Tokenizer", options: ReplyOptions):
        self.id = new_id("resp")
        self._requested = requested
        self._begun = ResponseReply(id=self.id, created_at=int(time.time()), model=options.model, **requested.repeated)
        self._done: list[OutputItem] = []
        self._item: Item | None = None  # the one that grows
        self._kind: tuple[type, int] | None = None
        self._n_events = 0
        self._text_tail = b""  # the constant part of an event of text, up to the text
        self._reason = ""

    # ---- a stream ---------------------------------------------------------------------------------------------

    def opening(self) -> bytes:
        return self._events(
            ("response.created", {"response": self._begun}), ("response.in_progress", {"response": self._begun})
        )

    def is_heavy(self, choice: int) -> bool:
        return False

    def chunk(self, choice: int, chunk: "Chunk", stream: EngineStream) -> bytes:
        deltas = chunk.deltas
        if len(deltas) == 1 and self._kind == TEXT and isinstance(deltas[0], str):  # nearly always
            return self._text_event(deltas[0])
        return b"".join([self._delta(delta) for delta in deltas])

    def _delta(self, delta: Delta) -> bytes:
        begun = b""
        if kind_of(delta) != self._kind:
            begun = self._end_item("completed") + self._begin_item(delta)
        assert self._item
        if isinstance(delta, str):
            return begun + self._text_event(delta)
        return begun + self._events(self._item.add(delta))

    def _text_event(self, text: str) -> bytes:
        assert self._item
        self._item.parts.append(text)
        self._n_events += 1
        return TEXT_HEAD % (self._n_events - 1) + self._text_tail + encode(text) + b"}\n\n"

    def _begin_item(self, delta: Delta) -> bytes:
        self._kind = kind_of(delta)
        self._item = new_item(delta, len(self._done), self._requested.names, self._requested.as_summary)
        facts = {"item_id": self._item.id, "output_index": self._item.index, "content_index": 0, "logprobs": []}
        self._text_tail = encode(facts)[1:-1] + b',"delta":'
        return self._events(*self._item.begin())

    def _end_item(self, status: str) -> bytes:
        if self._item is None:
            return b""
        item = self._item
        self._item = None
        self._kind = None
        self._done.append(item.whole(status))
        return self._events(*item.end(status))

    def closing(self, choice: int, chunk: "Chunk") -> bytes:
        self._reason = chunk.finish_reason or ""
        return self._end_item(status_of(self._reason))

    def ending(self, usage: Usage) -> bytes:
        reply = self._finished(self._done, self._reason, usage)
        return self._events((f"response.{reply.status}", {"response": reply}))

    def failure(self, error: HttpError) -> bytes:
        failed = ResponseFailure(
            "server_error" if error.status >= 500 else error.code or "invalid_prompt", error.message
        )
        return self._events(("response.failed", {"response": replace(self._begun, status="failed", error=failed)}))

    def progress(self, progress: PromptProgress, elapsed_s: float) -> bytes:
        return b""

    def _events(self, *made: tuple[str, Mapping[str, Any]]) -> bytes:
        first = self._n_events
        self._n_events = self._n_events + len(made)
        return b"".join(
            [named_event(name, {"sequence_number": first + i, **fields}) for i, (name, fields) in enumerate(made)]
        )

    # ---- whole ------------------------------------------------------------------------------------------------

    def whole(self, outputs: Sequence[ChoiceOutput], streams: Sequence[EngineStream], usage: Usage) -> ResponseReply:
        deltas = merge(outputs[0].deltas)
        reason = outputs[0].finish_reason
        items: list[OutputItem] = []
        for i, delta in enumerate(deltas):
            item = new_item(delta, i, self._requested.names, self._requested.as_summary)
            item.add(delta)
            items.append(item.whole(status_of(reason) if i == len(deltas) - 1 else "completed"))
        return self._finished(items, reason, usage)

    def _finished(self, items: list[OutputItem], reason: str, usage: Usage) -> ResponseReply:
        status = "completed" if self._requested.is_ahead else status_of(reason)
        is_complete = status == "completed"
        reply = replace(
            self._begun,
            status=status,
            output=items,
            usage=ResponseUsage.of(usage),
            incomplete_details=None if is_complete else {"reason": INCOMPLETE[reason]},
            completed_at=int(time.time()) if is_complete else None,
        )
        if self._requested.keep:
            self._requested.keep(reply)
        return reply


TEXT_HEAD = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":%d,'


def status_of(reason: str) -> str:
    return "incomplete" if reason in INCOMPLETE else "completed"
