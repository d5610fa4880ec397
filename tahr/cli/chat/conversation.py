"""A conversation: its messages so far, how replies are sampled, and the next reply."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from tahr.cli.terminal.console import ChatOutput, note
from tahr.cli.terminal.interrupt import Interrupt
from tahr.config import SamplingParams, precedence
from tahr.errors import ConfigError, TahrError, TemplateError
from tahr.grammar import Grammar
from tahr.text.replies.deltas import ToolCall, reasoning_of

if TYPE_CHECKING:
    from tahr import Chunk
    from tahr.cli.chat.prefix_files import PrefixFiles

Message = dict[str, Any]

# A reply is promised at most this part of the context when old turns are weighed against it.
REPLY_SHARE = 0.25


class ChatModel(Protocol):
    """A conversation's view of a model: an `LLM`, or a model of a server."""

    @property
    def name(self) -> str: ...
    @property
    def context_size(self) -> int: ...
    @property
    def backend_summary(self) -> str: ...
    @property
    def load_log(self) -> Sequence[str]: ...
    @property
    def template(self) -> object | None: ...
    @property
    def sampling_defaults(self) -> SamplingParams | None: ...  # None: known to the server alone
    def stream(self, prompt: str, params: SamplingParams) -> "Iterator[Chunk]": ...
    def stream_chat(self, messages: list[Message], params: SamplingParams, **options: Any) -> "Iterator[Chunk]": ...
    def encode_chat(self, messages: list[Message], **options: Any) -> list[int]: ...


@dataclass
class Conversation:
    """Messages with one model; `raw` means there are none: each prompt is completed as it stands."""

    llm: ChatModel
    output: ChatOutput
    # the user's parameters, laid over the model's own values
    requested: SamplingParams = field(default_factory=SamplingParams)
    variables: dict[str, Any] = field(default_factory=dict)  # variables of the chat template
    raw: bool = False
    shifts: bool = True  # whether old turns may be dropped when the context is full
    messages: list[Message] = field(default_factory=list)
    images: list[Message] = field(default_factory=list)  # parts of the next message of the user
    grammar: Grammar | None = None  # grammar of every reply
    prefix_files: "PrefixFiles | None" = None  # keys and values in files, where the model is in this process

    def __post_init__(self) -> None:
        if not self.raw and self.llm.template is None:
            raise TemplateError(
                f"{self.llm.name} has no chat template, so it cannot hold a conversation: "
                "use --raw to have it continue your text as it stands."
            )

    @property
    def sampling(self) -> SamplingParams:
        """The values in force: what was asked for, else what the model recommends."""
        defaults = self.llm.sampling_defaults
        return self.requested if defaults is None else precedence(self.requested, defaults)

    @property
    def system(self) -> str | None:
        """The system prompt."""
        return self.messages[0]["content"] if self.messages and self.messages[0]["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        if self.raw:
            raise ConfigError("With --raw there is no system prompt: put the text into the prompt itself.")
        rest = self.messages[1:] if self.system is not None else self.messages
        self.messages = ([{"role": "system", "content": text}] if text else []) + rest

    def clear(self) -> None:
        """Forget all turns; the system prompt stays."""
        self.messages = self.messages[:1] if self.system is not None else []

    def reply(self, text: str) -> bool:
        """Stream the answer to `text` and remember both; False if it was stopped. A failed turn leaves no trace."""
        before = list(self.messages)
        self.output.user(text)
        if not self._answers_last_call(text):
            return True
        try:
            said, calls, finished = self._stream(text)
        except BaseException as error:
            self.messages = before
            if isinstance(error, TahrError):
                self.output.failed(str(error))
            raise
        # A turn stopped before its first word would leave a question without an answer in the history.
        message = {"role": "assistant", "content": said, **({"tool_calls": calls} if calls else {})}
        self.messages = [*self.messages, message] if said or finished else before
        if calls:
            self._announce()
        return finished

    @property
    def _open_calls(self) -> list[Message]:
        """The calls of the model whose results are not here yet."""
        made = next((i for i, each in reversed(list(enumerate(self.messages))) if each.get("tool_calls")), None)
        if made is None:
            return []
        after = self.messages[made + 1 :]
        calls: list[Message] = self.messages[made]["tool_calls"]
        return calls[len(after) :] if all(each["role"] == "tool" for each in after) else []

    def _announce(self) -> None:
        calls = self._open_calls
        if calls:
            note(f"What you type next is the result of {calls[0]['function']['name']}.")

    def _answers_last_call(self, text: str) -> bool:
        """Whether the model can go on. While it waits for results of several calls, one is kept and the next asked."""
        calls = self._open_calls
        if len(calls) < 2:
            return True
        self.messages = [*self.messages, result_of(calls[0], text)]
        self._announce()
        return False

    def _stream(self, text: str) -> tuple[str, list[Message], bool]:
        pieces = []
        n_tokens = 0
        chunks = cast("Generator[Chunk, None, None]", self._chunks(text))  # an LLM's streams can be closed
        with Interrupt() as interrupt, closing(chunks):
            for chunk in chunks:
                self.output.thought(reasoning_of(chunk.deltas))
                self.output.piece(chunk.text)
                pieces.append(chunk.text)
                n_tokens += len(chunk.token_ids)
                if chunk.completion is not None:
                    self.output.done(chunk.completion)
                    return "".join(pieces), [as_message(call) for call in chunk.completion.tool_calls], True
                if interrupt.requested:
                    break
        # A server does not tell how many tokens a piece has.
        self.output.stopped(n_tokens if n_tokens or not any(pieces) else None)
        return "".join(pieces), [], False

    def _chunks(self, text: str) -> "Iterator[Chunk]":
        if self.raw:
            return self.llm.stream(text, self._params)
        calls = self._open_calls
        self.messages = [*self.messages, result_of(calls[0], text) if calls else self._user_message(text)]
        self._drop_old_turns()
        return self.llm.stream_chat(self.messages, self._params, **self.variables)

    def _user_message(self, text: str) -> Message:
        """A message of the user, with the images that were chosen for it before it."""
        content = [*self.images, {"type": "text", "text": text}] if self.images else text
        self.images = []
        return {"role": "user", "content": content}

    @property
    def _params(self) -> SamplingParams:
        return replace(self.requested, grammar=self.grammar) if self.grammar else self.requested

    def _drop_old_turns(self) -> None:
        """Drop the oldest turns until a reply fits beside the rest, and say so."""
        size = self.llm.context_size
        longest = size - int(min(self.sampling.max_tokens or size, size * REPLY_SHARE))
        n_dropped = 0
        while (
            self.shifts
            and len(self.llm.encode_chat(self.messages, **self.variables)) > longest
            and (turn := self._oldest_turn())
        ):
            self.messages = self.messages[: turn.start] + self.messages[turn.stop :]
            n_dropped += 1
        if n_dropped:
            turns = "The oldest turn was" if n_dropped == 1 else f"The {n_dropped} oldest turns were"
            note(f"warning: {turns} dropped, because the conversation no longer fits the context of {size} tokens.")

    def _oldest_turn(self) -> slice | None:
        """The first question with everything up to the next one; None if only the present one is left."""
        starts = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        return slice(starts[0], starts[1]) if len(starts) > 1 else None


def as_message(call: ToolCall) -> Message:
    """A call as a message holds it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def result_of(call: Message, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": text}
