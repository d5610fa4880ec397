"""How replies look for Ollama's clients: a line of JSON per piece, the last with timings."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from tahr.server.http.errors import HttpError
from tahr.server.http.request import HttpRequest
from tahr.server.http.sse import encode
from tahr.server.models.engine_port import EngineStream, PromptProgress
from tahr.server.ollama.replies import (
    OllamaCall,
    OllamaCalledFunction,
    OllamaChatReply,
    OllamaError,
    OllamaGenerateReply,
    OllamaReplyMessage,
    timestamp,
)
from tahr.server.replies.formatter import ChoiceOutput, ReplyOptions, Usage
from tahr.server.replies.logprobs import TokenLogprob, chat_logprobs, shown
from tahr.text.replies.deltas import (
    Delta,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
    merge,
    reasoning_of,
    text_of,
    tool_calls_of,
)
from tahr.text.tool_calls.json_text import loaded_prefix

if TYPE_CHECKING:
    from tahr.engine.sampling.sampling_state import SampledToken
    from tahr.generation.outputs import Chunk, Completion
    from tahr.text.tokens.tokenizer import Tokenizer

HEADERS = {"content-type": "application/x-ndjson", "cache-control": "no-cache", "x-accel-buffering": "no"}
NANOSECONDS = 1_000_000_000
CUT = ("length", "abort")  # finish reasons that this API has, too


@dataclass(frozen=True, slots=True)
class LineOptions:
    """Whose reply it is."""

    model: str  # the client's name of it
    request: HttpRequest
    is_chat: bool


class LineFormatter:
    """Text and thinking go out as they come, calls when they are whole."""

    headers: Mapping[str, str] = HEADERS
    keep_alive = b""  # every line is taken for a part of the reply

    def __init__(self, requested: LineOptions, tokenizer: "Tokenizer", options: ReplyOptions):
        self.id = f"ollama-{random.getrandbits(96):024x}"  # no secret: asking the system for one takes long
        self.has_logprobs = options.logprobs
        self._requested = requested
        self._tokenizer = tokenizer
        self._head = b'{"model":%b,"created_at":"' % encode(requested.model)
        self._calls: list[Delta] = []

    # ---- a stream ---------------------------------------------------------------------------------------------

    def opening(self) -> bytes:
        return b""

    def is_heavy(self, choice: int) -> bool:
        return False

    def chunk(self, choice: int, chunk: "Chunk", stream: EngineStream) -> bytes:
        self._calls += [delta for delta in chunk.deltas if isinstance(delta, ToolCallDelta)]
        told = [delta for delta in chunk.deltas if not isinstance(delta, ToolCallDelta)]
        logprobs = self._logprobs(shown(self._tokenizer, chunk)) if self.has_logprobs else None
        if logprobs and not told:
            told = [""]
        return b"".join([self._line(delta, None if i else logprobs) for i, delta in enumerate(told)])

    def _line(self, delta: Delta, logprobs: list[TokenLogprob] | None) -> bytes:
        text, thinking = ("", delta.text) if isinstance(delta, ReasoningDelta) else (str(delta), None)
        if self._requested.is_chat:
            more = b"" if thinking is None else b',"thinking":%b' % encode(thinking)
            body = b'"message":{"role":"assistant","content":%b%b}' % (encode(text), more)
        else:
            body = b'"response":%b' % encode(text)
            body += b"" if thinking is None else b',"thinking":%b' % encode(thinking)
        tail = b',"logprobs":%b' % encode(logprobs) if logprobs else b""
        return b'%b%b",%b,"done":false%b}\n' % (self._head, timestamp().encode(), body, tail)

    def closing(self, choice: int, chunk: "Chunk") -> bytes:
        assert chunk.completion
        calls = called(tool_calls_of(self._calls))
        message = OllamaReplyMessage("assistant", "", tool_calls=calls or UNSET)
        return self._calls_line(message) + encode(self._last(chunk.completion, "", UNSET)) + b"\n"

    def _calls_line(self, message: OllamaReplyMessage) -> bytes:
        if not message.tool_calls or not self._requested.is_chat:
            return b""
        return b'%b%b","message":%b,"done":false}\n' % (self._head, timestamp().encode(), encode(message))

    def ending(self, usage: Usage) -> bytes:
        return b""

    def failure(self, error: HttpError) -> bytes:
        return encode(OllamaError.of(error, self.id)) + b"\n"

    def progress(self, progress: PromptProgress, elapsed_s: float) -> bytes:
        raise AssertionError("no request of this API asks for progress")

    # ---- whole ------------------------------------------------------------------------------------------------

    def whole(
        self, outputs: Sequence[ChoiceOutput], streams: Sequence[EngineStream], usage: Usage
    ) -> OllamaChatReply | OllamaGenerateReply:
        output = outputs[0]
        deltas = merge(outputs[0].deltas)
        assert output.completion
        calls = called(tool_calls_of(deltas)) or UNSET
        made = self._last(output.completion, text_of(deltas), reasoning_of(deltas) or UNSET)
        if isinstance(made, OllamaChatReply):
            made.message.tool_calls = calls
        if self.has_logprobs:
            made.logprobs = self._logprobs(output.logprobs)
        return made

    def _last(self, completion: "Completion", text: str, thinking: Any) -> OllamaChatReply | OllamaGenerateReply:
        facts: dict[str, Any] = {
            "model": self._requested.model,
            "created_at": timestamp(),
            "done_reason": completion.finish_reason if completion.finish_reason in CUT else "stop",
            **self._durations(completion),
        }
        if not self._requested.is_chat:
            return OllamaGenerateReply(response=text, thinking=thinking, **facts)
        return OllamaChatReply(message=OllamaReplyMessage("assistant", text, thinking), **facts)

    def _durations(self, completion: "Completion") -> dict[str, int]:
        stats = completion.stats
        request = self._requested.request
        seconds = {
            "total_duration": perf_counter() - request.record.began,
            "load_duration": request.load_s,
            "prompt_eval_duration": stats.prefill_s,
            "eval_duration": stats.decode_s,
        }
        counts = {"prompt_eval_count": stats.n_prompt_tokens, "eval_count": stats.n_generated_tokens}
        return counts | {name: int(value * NANOSECONDS) for name, value in seconds.items()}

    def _logprobs(self, tokens: "Sequence[SampledToken]") -> list[TokenLogprob]:
        return chat_logprobs(self._tokenizer, tokens).content


def called(calls: Sequence[ToolCall]) -> list[OllamaCall]:
    """Calls with their arguments as objects; of broken JSON as much as is whole."""
    return [
        OllamaCall(call.id, OllamaCalledFunction(i, call.name, loaded_prefix(call.arguments)))
        for i, call in enumerate(calls)
    ]
