"""How the answers of chats and completions look, in a stream and whole."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from msgspec import UNSET, Struct, UnsetType

from tahr.server.engine_port import PromptProgress, Reply
from tahr.server.http.sse import encode
from tahr.server.openai.logprobs import chat_logprobs, prompt_logprobs, shown, text_logprobs
from tahr.server.openai.replies import (
    ChatChoice,
    ChatMessage,
    ChatReply,
    PromptLogprobs,
    TextChoice,
    TextLogprobs,
    TextReply,
    Usage,
)

if TYPE_CHECKING:
    from tahr.engine.sampler import SampledToken
    from tahr.library.outputs import Chunk
    from tahr.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Gathered:
    """An answer that is being put together."""

    texts: list[str] = field(default_factory=list)
    picks: "list[SampledToken]" = field(default_factory=list)
    finish_reason: str = ""


@dataclass(frozen=True, slots=True)
class Style:
    """What a request wants to see."""

    model: str
    n_choices: int
    n_answers: int  # to each prompt
    logprobs: bool = False
    prompt_logprobs: bool = False
    include_usage: bool = False


class Dialect(Protocol):
    """One route's way to write answers."""

    id: str

    def opening(self) -> bytes: ...
    def piece(self, choice: int, chunk: "Chunk", reply: Reply) -> bytes: ...
    def closing(self, choice: int, reason: str) -> bytes: ...
    def usage(self, usage: Usage) -> bytes: ...
    def progress(self, progress: PromptProgress, elapsed_s: float) -> bytes: ...
    def whole(self, answers: Sequence[Gathered], replies: Sequence[Reply], usage: Usage) -> Struct: ...


class Frame:
    """The constant part of every chunk, encoded once."""

    def __init__(self, prefix: str, kind: str, style: Style):
        self.id = f"{prefix}-{random.getrandbits(96):024x}"  # no secret: asking the system for one takes long
        self.created = int(time.time())
        facts = {"id": self.id, "object": kind, "created": self.created, "model": style.model}
        self._head = b"data: " + encode(facts)[:-1] + b',"choices":['
        self.foot = b'],"usage":null}\n\n' if style.include_usage else b"]}\n\n"

    def heads(self, style: Style, rest: bytes) -> list[bytes]:
        """The beginning of a chunk for each choice, up to what is new."""
        return [self._head + b'{"index":%d,%b' % (choice, rest) for choice in range(style.n_choices)]

    def usage(self, usage: Usage) -> bytes:
        return self._head + b'],"usage":%b}\n\n' % encode(usage)

    def progress(self, progress: PromptProgress, elapsed_s: float) -> bytes:
        shown = {
            "total": progress.n_tokens,
            "cache": progress.n_cached,
            "processed": progress.n_read,
            "time_ms": round(elapsed_s * 1e3),
        }
        return self._head + b'],"prompt_progress":%b}\n\n' % encode(shown)


def scores_of(tokenizer: "Tokenizer", style: Style, reply: Reply) -> PromptLogprobs | UnsetType:
    return prompt_logprobs(tokenizer, reply.prompt_logprobs) if style.prompt_logprobs else UNSET


class ChatDialect:
    """`chat.completion` and its chunks."""

    def __init__(self, tokenizer: "Tokenizer", style: Style):
        self._tokenizer, self._style = tokenizer, style
        self._frame = Frame("chatcmpl", "chat.completion.chunk", style)
        self.id = self._frame.id
        self._heads = self._frame.heads(style, b'"delta":{')
        self._texts = [head + b'"content":' for head in self._heads]
        self._no_logprobs = b'},"logprobs":null,"finish_reason":null}' + self._frame.foot

    def opening(self) -> bytes:
        """Every choice begins with its role."""
        return b"".join(head + b'"role":"assistant","content":""' + self._no_logprobs for head in self._heads)

    def piece(self, choice: int, chunk: "Chunk", reply: Reply) -> bytes:
        if not self._style.logprobs:
            return self._texts[choice] + encode(chunk.text) + self._no_logprobs if chunk.text else b""
        picks = shown(self._tokenizer, chunk)
        if not picks and not chunk.text:
            return b""
        logprobs = encode(chat_logprobs(self._tokenizer, picks))
        tail = b'},"logprobs":%b,"finish_reason":null}' % logprobs
        return self._texts[choice] + encode(chunk.text) + tail + self._frame.foot

    def closing(self, choice: int, reason: str) -> bytes:
        tail = b'},"logprobs":null,"finish_reason":%b}' % encode(reason)
        return self._heads[choice] + tail + self._frame.foot

    def usage(self, usage: Usage) -> bytes:
        return self._frame.usage(usage)

    def progress(self, progress: PromptProgress, elapsed_s: float) -> bytes:
        return self._frame.progress(progress, elapsed_s)

    def whole(self, answers: Sequence[Gathered], replies: Sequence[Reply], usage: Usage) -> ChatReply:
        choices = [self._choice(i, answer, replies[0]) for i, answer in enumerate(answers)]
        return ChatReply(self.id, "chat.completion", self._frame.created, self._style.model, choices, usage)

    def _choice(self, index: int, answer: Gathered, reply: Reply) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=ChatMessage("assistant", "".join(answer.texts)),
            logprobs=chat_logprobs(self._tokenizer, answer.picks) if self._style.logprobs else None,
            finish_reason=answer.finish_reason,
            prompt_logprobs=scores_of(self._tokenizer, self._style, reply),
        )


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is repeated before its answers."""

    text: str
    tokens: list[int]


class TextDialect:
    """`text_completion`, whose chunks look like the whole."""

    def __init__(self, tokenizer: "Tokenizer", style: Style, echoes: Sequence[Echo] = ()):
        self._tokenizer, self._style, self._echoes = tokenizer, style, echoes
        self._frame = Frame("cmpl", "text_completion", style)
        self.id = self._frame.id
        self._heads = self._frame.heads(style, b'"text":')
        self._offsets = [0] * style.n_choices
        self._begun = [not echoes] * style.n_choices

    def opening(self) -> bytes:
        return b""

    def piece(self, choice: int, chunk: "Chunk", reply: Reply) -> bytes:
        text, parts = chunk.text, []
        if not self._begun[choice]:
            text = self._echo(choice).text + text
            parts = self._echoed_logprobs(choice, reply)
        if self._style.logprobs:
            parts.append(self._logprobs(choice, shown(self._tokenizer, chunk)))
        self._begun[choice] = True
        if not text and not any(part.tokens for part in parts):
            return b""
        logprobs = encode(joined(parts)) if parts else b"null"
        return self._chunk(choice, text, logprobs, b"null")

    def closing(self, choice: int, reason: str) -> bytes:
        return self._chunk(choice, "", b"null", encode(reason))

    def usage(self, usage: Usage) -> bytes:
        return self._frame.usage(usage)

    def progress(self, progress: PromptProgress, elapsed_s: float) -> bytes:
        return self._frame.progress(progress, elapsed_s)

    def whole(self, answers: Sequence[Gathered], replies: Sequence[Reply], usage: Usage) -> TextReply:
        choices = [self._choice(i, answer, replies[i // self._style.n_answers]) for i, answer in enumerate(answers)]
        return TextReply(self.id, "text_completion", self._frame.created, self._style.model, choices, usage)

    def _choice(self, index: int, answer: Gathered, reply: Reply) -> TextChoice:
        before = self._echo(index).text if self._echoes else ""
        parts = self._echoed_logprobs(index, reply) if self._echoes else []
        if self._style.logprobs:
            parts.append(self._logprobs(index, answer.picks))
        return TextChoice(
            index=index,
            text=before + "".join(answer.texts),
            logprobs=joined(parts) if parts else None,
            finish_reason=answer.finish_reason,
            prompt_logprobs=scores_of(self._tokenizer, self._style, reply),
        )

    def _echo(self, choice: int) -> Echo:
        return self._echoes[choice // self._style.n_answers]

    def _echoed_logprobs(self, choice: int, reply: Reply) -> list[TextLogprobs]:
        if not self._style.logprobs:
            return []
        return [self._logprobs(choice, reply.prompt_logprobs, first=self._echo(choice).tokens[0])]

    def _logprobs(self, choice: int, picks: "Sequence[SampledToken]", first: int | None = None) -> TextLogprobs:
        made, self._offsets[choice] = text_logprobs(self._tokenizer, picks, self._offsets[choice], first)
        return made

    def _chunk(self, choice: int, text: str, logprobs: bytes, reason: bytes) -> bytes:
        tail = b',"logprobs":%b,"finish_reason":%b}' % (logprobs, reason)
        return self._heads[choice] + encode(text) + tail + self._frame.foot


def joined(parts: Sequence[TextLogprobs]) -> TextLogprobs:
    """Lists side by side, one after the other."""
    tops = [top for part in parts for top in part.top_logprobs or ()]
    return TextLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[logprob for part in parts for logprob in part.token_logprobs],
        top_logprobs=tops,
        text_offset=[offset for part in parts for offset in part.text_offset],
    )
