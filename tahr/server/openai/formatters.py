"""How the outputs of chats and completions look, in a stream and whole."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from tahr.server.http.errors import Envelope, HttpError
from tahr.server.http.sse import DONE, HEADERS, KEEP_ALIVE, encode, event
from tahr.server.models.engine_port import EngineStream, PromptProgress
from tahr.server.openai.replies import (
    CalledFunction,
    ChatChoice,
    ChatMessage,
    ChatReply,
    TextChoice,
    TextReply,
    ToolCallReply,
)
from tahr.server.replies.formatter import ChoiceOutput, ReplyOptions, Usage
from tahr.server.replies.logprobs import (
    PromptLogprobs,
    TextLogprobs,
    TextOffsets,
    chat_logprobs,
    prompt_logprobs,
    prompt_parts,
    shown,
    text_logprobs,
    text_parts,
)
from tahr.text.replies.deltas import (
    Delta,
    Deltas,
    ReasoningDelta,
    ToolCallDelta,
    cut_call_of,
    merge,
    reasoning_of,
    text_of,
    tool_calls_of,
)

if TYPE_CHECKING:
    from tahr.engine.sampling.sampling_state import SampledToken
    from tahr.generation.outputs import Chunk
    from tahr.text.tokens.tokenizer import Tokenizer


class EventFrame:
    """The constant part of every event, encoded once, when the first event is written."""

    def __init__(self, prefix: str, kind: str, options: ReplyOptions):
        self.id = f"{prefix}-{random.getrandbits(96):024x}"  # no secret: asking the system for one takes long
        self.created = int(time.time())
        self._kind = kind
        self._options = options
        self.foot = b'],"usage":null}\n\n' if options.include_usage else b"]}\n\n"

    @cached_property
    def _head(self) -> bytes:
        facts = {"id": self.id, "object": self._kind, "created": self.created, "model": self._options.model}
        facts["system_fingerprint"] = self._options.fingerprint
        return b"data: " + encode(facts)[:-1] + b',"choices":['

    def heads(self, rest: bytes) -> list[bytes]:
        """The beginning of an event for each choice, up to what is new."""
        return [self._head + b'{"index":%d,%b' % (choice, rest) for choice in range(self._options.n_choices)]

    def usage(self, usage: Usage) -> bytes:
        return self._head + b'],"usage":%b}\n\n' % encode(usage)

    def progress(self, progress: PromptProgress, elapsed_s: float) -> bytes:
        facts = {
            "total": progress.n_tokens,
            "cache": progress.n_cached,
            "processed": progress.n_computed,
            "time_ms": round(elapsed_s * 1e3),
        }
        return self._head + b'],"prompt_progress":%b}\n\n' % encode(facts)


class BaseFormatter:
    """Common parts of both formatters."""

    headers: Mapping[str, str] = HEADERS
    keep_alive = KEEP_ALIVE

    def __init__(self, tokenizer: "Tokenizer", options: ReplyOptions, frame: EventFrame):
        self._tokenizer = tokenizer
        self._options = options
        self._frame = frame
        self.id = frame.id
        self.progress = frame.progress
        self.has_logprobs = options.logprobs or options.prompt_logprobs

    def ending(self, usage: Usage) -> bytes:
        return self._frame.usage(usage) + DONE if self._options.include_usage else DONE

    def failure(self, error: HttpError) -> bytes:
        return event(encode(Envelope.of(error, self.id))) + DONE

    def _prompt_logprobs(self, index: int, streams: Sequence[EngineStream]) -> PromptLogprobs | UnsetType:
        """Log-probabilities of a prompt, once: with its first choice."""
        if not self._options.prompt_logprobs or index % self._options.n_per_prompt:
            return UNSET
        return prompt_logprobs(self._tokenizer, streams[index // self._options.n_per_prompt].prompt_logprobs)


class ChatFormatter(BaseFormatter):
    """`chat.completion` and its chunks."""

    def __init__(self, tokenizer: "Tokenizer", options: ReplyOptions):
        super().__init__(tokenizer, options, EventFrame("chatcmpl", "chat.completion.chunk", options))
        self._n_calls = [0] * options.n_choices
        self._cut: dict[int, int] = {}  # index of the call that is not whole, by choice

    @cached_property
    def _heads(self) -> list[bytes]:
        return self._frame.heads(b'"delta":{')

    @cached_property
    def _content_heads(self) -> list[bytes]:
        return [head + b'"content":' for head in self._heads]

    @cached_property
    def _no_logprobs(self) -> bytes:
        return b'},"logprobs":null,"finish_reason":null}' + self._frame.foot

    def opening(self) -> bytes:
        """Every choice begins with its role."""
        return b"".join(head + b'"role":"assistant","content":""' + self._no_logprobs for head in self._heads)

    def is_heavy(self, choice: int) -> bool:
        return False

    def chunk(self, choice: int, chunk: "Chunk", stream: EngineStream) -> bytes:
        if self.has_logprobs:
            return self._with_logprobs(choice, chunk)
        deltas = chunk.deltas
        if len(deltas) == 1 and isinstance(deltas[0], str):  # nearly always
            return self._content_heads[choice] + encode(deltas[0]) + self._no_logprobs
        return b"".join([self._delta(choice, delta) + self._no_logprobs for delta in self._shown(choice, deltas)])

    def _shown(self, choice: int, deltas: Deltas) -> list[Delta]:
        """The deltas that clients get; that a call is cut is said at the end."""
        for delta in deltas:
            if isinstance(delta, ToolCallDelta):
                self._n_calls[choice] += bool(delta.id) - delta.is_cut
                if delta.is_cut:
                    self._cut[choice] = delta.index
        return [each for each in deltas if not isinstance(each, ToolCallDelta) or each.id or each.arguments]

    def _with_logprobs(self, choice: int, chunk: "Chunk") -> bytes:
        """The log-probabilities stand with the first delta, if there is one."""
        tokens = shown(self._tokenizer, chunk)
        if not tokens and not chunk.deltas:
            return b""
        first, *others = self._shown(choice, chunk.deltas) or [""]
        logprobs = encode(chat_logprobs(self._tokenizer, tokens))
        tail = b'},"logprobs":%b,"finish_reason":null}' % logprobs + self._frame.foot
        rest = [self._delta(choice, delta) + self._no_logprobs for delta in others]
        return b"".join([self._delta(choice, first) + tail, *rest])

    def _delta(self, choice: int, delta: Delta) -> bytes:
        if isinstance(delta, str):
            return self._content_heads[choice] + encode(delta)
        return self._heads[choice] + encode(self._fields(choice, delta))[1:-1]

    def _fields(self, choice: int, delta: ReasoningDelta | ToolCallDelta) -> dict[str, Any]:
        if isinstance(delta, ReasoningDelta):
            return {"reasoning_content": delta.text, "reasoning": delta.text}  # both names are in use
        called: dict[str, Any] = {"arguments": delta.arguments}
        if self._options.legacy_calls:
            return {"function_call": {"name": delta.name, **called} if delta.name else called}
        if not delta.id:
            return {"tool_calls": [{"index": delta.index, "function": called}]}
        called["name"] = delta.name
        return {"tool_calls": [{"index": delta.index, "id": delta.id, "type": "function", "function": called}]}

    def closing(self, choice: int, chunk: "Chunk") -> bytes:
        reason = finish_reason_of(chunk.finish_reason or "", self._n_calls[choice] > 0, self._options.legacy_calls)
        cut = b',"incomplete_tool_call":{"index":%d}' % self._cut[choice] if choice in self._cut else b""
        tail = b'},"logprobs":null,"finish_reason":%b%b}' % (encode(reason), cut)
        return self._heads[choice] + tail + self._frame.foot

    def whole(self, outputs: Sequence[ChoiceOutput], streams: Sequence[EngineStream], usage: Usage) -> ChatReply:
        return ChatReply(
            id=self.id,
            object="chat.completion",
            created=self._frame.created,
            model=self._options.model,
            choices=[self._choice(i, output) for i, output in enumerate(outputs)],
            usage=usage,
            system_fingerprint=self._options.fingerprint,
            prompt_logprobs=self._prompt_logprobs(0, streams),
        )

    def _choice(self, index: int, output: ChoiceOutput) -> ChatChoice:
        message = message_of(output, self._options.legacy_calls)
        has_calls = bool(message.tool_calls or message.function_call)
        cut = cut_call_of(output.deltas)
        return ChatChoice(
            index=index,
            message=message,
            logprobs=chat_logprobs(self._tokenizer, output.logprobs) if self._options.logprobs else None,
            finish_reason=finish_reason_of(output.finish_reason, has_calls, self._options.legacy_calls),
            incomplete_tool_call=CalledFunction(cut.name, cut.arguments) if cut else UNSET,
        )


def finish_reason_of(reason: str, has_calls: bool, legacy: bool) -> str:
    if reason != "stop" or not has_calls:
        return reason
    return "function_call" if legacy else "tool_calls"


def message_of(output: ChoiceOutput, legacy: bool) -> ChatMessage:
    """A reply as a message; what it does not hold is left out."""
    deltas = merge(output.deltas)
    if len(deltas) == 1 and isinstance(deltas[0], str):  # nearly always
        return ChatMessage("assistant", deltas[0])
    text = text_of(deltas)
    reasoning = reasoning_of(deltas) or UNSET
    calls = tool_calls_of(deltas)
    functions = [CalledFunction(call.name, call.arguments) for call in calls]
    tool_calls = [ToolCallReply(call.id, function) for call, function in zip(calls, functions, strict=True)]
    return ChatMessage(
        "assistant",
        content=text if text or not (calls or cut_call_of(deltas)) else None,
        reasoning_content=reasoning,
        reasoning=reasoning,
        tool_calls=tool_calls if tool_calls and not legacy else UNSET,
        function_call=functions[0] if functions and legacy else UNSET,
    )


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is repeated before its choices."""

    text: str
    tokens: list[int]
    is_text: bool  # the prompt was sent as text


class TextFormatter(BaseFormatter):
    """`text_completion`, whose chunks look like the whole."""

    def __init__(self, tokenizer: "Tokenizer", options: ReplyOptions, echoes: Sequence[Echo] = ()):
        super().__init__(tokenizer, options, EventFrame("cmpl", "text_completion", options))
        self._echoes = echoes
        self._heads = self._frame.heads(b'"text":')
        self._offsets = [TextOffsets() for _ in range(options.n_choices)]
        self._begun = [not echoes] * options.n_choices

    def opening(self) -> bytes:
        return b""

    def is_heavy(self, choice: int) -> bool:
        return self._options.logprobs and not self._begun[choice]  # log-probabilities of the whole prompt come first

    def chunk(self, choice: int, chunk: "Chunk", stream: EngineStream) -> bytes:
        text = chunk.text
        parts = []
        if not self._begun[choice]:
            text = self._echo(choice).text + text
            parts = self._echoed_logprobs(choice, stream)
        if self._options.logprobs:
            parts.append(self._logprobs(choice, shown(self._tokenizer, chunk)))
        self._begun[choice] = True
        if not text and not any(part.tokens for part in parts):
            return b""
        logprobs = encode(joined(parts)) if parts else b"null"
        return self._event(choice, text, logprobs, b"null")

    def closing(self, choice: int, chunk: "Chunk") -> bytes:
        return self._event(choice, "", b"null", encode(chunk.finish_reason))

    def whole(self, outputs: Sequence[ChoiceOutput], streams: Sequence[EngineStream], usage: Usage) -> TextReply:
        choices = [self._choice(i, output, streams) for i, output in enumerate(outputs)]
        options = self._options
        return TextReply(
            self.id, "text_completion", self._frame.created, options.model, choices, usage, options.fingerprint
        )

    def _choice(self, index: int, output: ChoiceOutput, streams: Sequence[EngineStream]) -> TextChoice:
        before = self._echo(index).text if self._echoes else ""
        stream = streams[index // self._options.n_per_prompt]
        parts = self._echoed_logprobs(index, stream) if self._echoes else []
        if self._options.logprobs:
            parts.append(self._logprobs(index, output.logprobs))
        return TextChoice(
            index=index,
            text=before + text_of(output.deltas),
            logprobs=joined(parts) if parts else None,
            finish_reason=output.finish_reason,
            prompt_logprobs=self._prompt_logprobs(index, streams),
        )

    def _echo(self, choice: int) -> Echo:
        return self._echoes[choice // self._options.n_per_prompt]

    def _echoed_logprobs(self, choice: int, stream: EngineStream) -> list[TextLogprobs]:
        if not self._options.logprobs:
            return []
        echo = self._echo(choice)
        offsets = self._offsets[choice]
        begins = offsets.after(prompt_parts(self._tokenizer, echo.tokens, echo.is_text))
        offsets.skip_to(len(echo.text))  # tokens of a text need not be the same letters
        return [text_logprobs(self._tokenizer, stream.prompt_logprobs, begins, first=echo.tokens[0])]

    def _logprobs(self, choice: int, tokens: "Sequence[SampledToken]") -> TextLogprobs:
        begins = self._offsets[choice].after(text_parts(self._tokenizer, [each.token for each in tokens]))
        return text_logprobs(self._tokenizer, tokens, begins)

    def _event(self, choice: int, text: str, logprobs: bytes, reason: bytes) -> bytes:
        tail = b',"logprobs":%b,"finish_reason":%b}' % (logprobs, reason)
        return self._heads[choice] + encode(text) + tail + self._frame.foot


def joined(parts: Sequence[TextLogprobs]) -> TextLogprobs:
    """Lists side by side, one after the other."""
    return TextLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[logprob for part in parts for logprob in part.token_logprobs],
        top_logprobs=[top for part in parts for top in part.top_logprobs or ()],
        text_offset=[offset for part in parts for offset in part.text_offset],
    )
