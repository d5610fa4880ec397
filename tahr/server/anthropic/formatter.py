"""How a message looks, in a stream and whole."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tahr.server.anthropic.replies import (
    SIGNATURE,
    AnthropicError,
    Block,
    MessageReply,
    MessageUsage,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from tahr.server.http.errors import HttpError
from tahr.server.http.sse import HEADERS, encode, named_event
from tahr.server.models.engine_port import EngineStream, PromptProgress
from tahr.server.replies.formatter import ChoiceOutput, ReplyOptions, Usage
from tahr.text.replies.deltas import Delta, ReasoningDelta, ToolCallDelta, kind_of, merge
from tahr.text.tool_calls.json_text import loaded_prefix

if TYPE_CHECKING:
    from tahr.generation.outputs import Chunk, Completion
    from tahr.text.tokens.tokenizer import Tokenizer

PING = named_event("ping", {})
DELTA = "content_block_delta"
TEXT = kind_of("")
THINKING = kind_of(ReasoningDelta(""))


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """A request's options for its reply."""

    max_tokens: int
    has_thinking: bool = False  # False: thoughts are left out
    omits_thinking: bool = False  # blocks of thinking are empty
    cache_page_size: int = 0  # pages of the prefix cache whose tokens count as written to it; 0: none do


class MessageFormatter:
    """`message` and its events. A block begins where the kind of the deltas changes."""

    has_logprobs = False
    headers: Mapping[str, str] = HEADERS
    keep_alive = PING

    def __init__(self, requested: MessageOptions, tokenizer: "Tokenizer", options: ReplyOptions):
        self.id = f"msg_{random.getrandbits(96):024x}"  # no secret: asking the system for one takes long
        self._requested = requested
        self._options = options
        self._n_blocks = 0
        self._kind: tuple[type, int] | None = None  # the open block
        self._text_head = b""  # the constant part of an event of text in this block
        self._n_calls = 0  # whole calls
        self._stop: tuple[str, str | None] = ("end_turn", None)

    # ---- a stream ---------------------------------------------------------------------------------------------

    def opening(self) -> bytes:
        """How much of the prompt is cached is not known yet: the last event says it."""
        usage = MessageUsage(self._options.n_prompt_tokens, 0)
        return named_event("message_start", {"message": MessageReply(self.id, self._options.model, [], usage)}) + PING

    def is_heavy(self, choice: int) -> bool:
        return False

    def chunk(self, choice: int, chunk: "Chunk", stream: EngineStream) -> bytes:
        deltas = chunk.deltas
        if len(deltas) == 1 and self._kind == TEXT and isinstance(deltas[0], str):  # nearly always
            return self._text_head + encode(deltas[0]) + b"}}\n\n"
        return b"".join([self._event(delta) for delta in deltas])

    def _event(self, delta: Delta) -> bytes:
        if not is_shown(delta, self._requested):
            return self._end_block()  # texts before and after a thought are two blocks, also if nobody sees it
        kind = kind_of(delta)
        begun = b"" if kind == self._kind else self._end_block() + self._begin_block(kind, delta)
        if isinstance(delta, str):
            return begun + self._text_head + encode(delta) + b"}}\n\n"
        if isinstance(delta, ToolCallDelta):
            self._n_calls -= delta.is_cut
            return begun + self._delta({"type": "input_json_delta", "partial_json": delta.arguments})
        if self._requested.omits_thinking:
            return begun
        return begun + self._delta({"type": "thinking_delta", "thinking": delta.text})

    def _begin_block(self, kind: tuple[type, int], delta: Delta) -> bytes:
        self._kind = kind
        self._n_blocks += 1
        block: Block = TextBlock("") if isinstance(delta, str) else ThinkingBlock("", signature="")
        if isinstance(delta, ToolCallDelta):
            self._n_calls += 1
            block = ToolUseBlock(delta.id, delta.name, {})
        if isinstance(delta, str):
            self._text_head = self._delta({"type": "text_delta", "text": ""}).removesuffix(b'""}}\n\n')
        return named_event("content_block_start", {"index": self._n_blocks - 1, "content_block": block})

    def _end_block(self) -> bytes:
        if self._kind is None:
            return b""
        signed = self._delta({"type": "signature_delta", "signature": SIGNATURE}) if self._kind == THINKING else b""
        self._kind = None
        return signed + named_event("content_block_stop", {"index": self._n_blocks - 1})

    def _delta(self, fields: dict[str, Any]) -> bytes:
        return named_event(DELTA, {"index": self._n_blocks - 1, "delta": fields})

    def closing(self, choice: int, chunk: "Chunk") -> bytes:
        self._stop = self._stop_of(chunk.completion, self._n_calls > 0)
        return self._end_block()

    def ending(self, usage: Usage) -> bytes:
        reason, sequence = self._stop
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        last = named_event("message_delta", {"delta": delta, "usage": self._usage_of(usage)})
        return last + named_event("message_stop", {})

    def failure(self, error: HttpError) -> bytes:
        made = AnthropicError.of(error, self.id)
        return named_event("error", {"error": made.error, "request_id": made.request_id})

    def progress(self, progress: PromptProgress, elapsed_s: float) -> bytes:
        return b""

    # ---- whole ------------------------------------------------------------------------------------------------

    def whole(self, outputs: Sequence[ChoiceOutput], streams: Sequence[EngineStream], usage: Usage) -> MessageReply:
        deltas = merge(outputs[0].deltas)
        if outputs[0].finish_reason != "length":  # clients of this API look for half a call where it is that
            deltas = tuple(each for each in deltas if not is_cut(each))
        blocks = [block_of(each, self._requested) for each in deltas if is_shown(each, self._requested)]
        has_calls = any(isinstance(each, ToolCallDelta) and not is_cut(each) for each in deltas)
        reason, sequence = self._stop_of(outputs[0].completion, has_calls)
        return MessageReply(self.id, self._options.model, blocks, self._usage_of(usage), reason, sequence)

    def _usage_of(self, usage: Usage) -> MessageUsage:
        return MessageUsage.of(usage, self._requested.cache_page_size)

    def _stop_of(self, completion: "Completion | None", has_calls: bool) -> tuple[str, str | None]:
        """Why the reply ended, and the stop sequence, if it was one."""
        assert completion
        if completion.finish_reason == "length":
            n_all = self._options.n_prompt_tokens + completion.stats.n_generated_tokens
            is_full = (
                n_all >= self._options.context_size and completion.stats.n_generated_tokens < self._requested.max_tokens
            )
            return "model_context_window_exceeded" if is_full else "max_tokens", None
        if completion.finish_reason == "abort":
            return "pause_turn", None  # clients send the turn back as it is, and it goes on
        if completion.matched_stop is not None:
            return "stop_sequence", completion.matched_stop
        return "tool_use" if has_calls else "end_turn", None


def is_cut(delta: Delta) -> bool:
    return isinstance(delta, ToolCallDelta) and delta.is_cut


def is_shown(delta: Delta, requested: MessageOptions) -> bool:
    return requested.has_thinking or not isinstance(delta, ReasoningDelta)


def block_of(delta: Delta, requested: MessageOptions) -> Block:
    if isinstance(delta, str):
        return TextBlock(delta)
    if isinstance(delta, ReasoningDelta):
        return ThinkingBlock("" if requested.omits_thinking else delta.text)
    return ToolUseBlock(delta.id, delta.name, loaded_prefix(delta.arguments))
