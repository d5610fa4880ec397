"""How an API writes outputs, and what it is told of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from tahr.server.http.errors import HttpError
from tahr.server.models.engine_port import EngineStream, PromptProgress
from tahr.text.replies.deltas import Delta

if TYPE_CHECKING:
    from tahr.engine.sampling.sampling_state import SampledToken
    from tahr.generation.outputs import Chunk, Completion
    from tahr.text.tokens.tokenizer import Tokenizer


class CachedDetails(Struct):
    cached_tokens: int


class ReasoningDetails(Struct):
    reasoning_tokens: int = 0


class Usage(Struct):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedDetails
    completion_tokens_details: ReasoningDetails


class ChoiceOutput(Struct):
    """All that a choice has got so far."""

    deltas: list[Delta] = []
    logprobs: "list[SampledToken]" = []
    completion: "Completion | None" = None  # once it is finished

    @property
    def finish_reason(self) -> str:
        return self.completion.finish_reason if self.completion else ""


class ReplyOptions(Struct, frozen=True):
    """Options of a reply's form, and the facts that all its parts repeat."""

    model: str
    fingerprint: str
    n_choices: int
    n_per_prompt: int
    n_prompt_tokens: int = 0
    context_size: int = 0
    logprobs: bool = False
    prompt_logprobs: bool = False
    include_usage: bool = False
    legacy_calls: bool = False  # a call is a `function_call`, as before there were tools


class Formatter(Protocol):
    """One route's way to write outputs. A stream is: opening, chunks, a closing per choice, ending (or failure)."""

    id: str
    has_logprobs: bool
    headers: Mapping[str, str]  # headers of a stream
    keep_alive: bytes  # bytes sent while there is no output

    def opening(self) -> bytes: ...
    def chunk(self, choice: int, chunk: "Chunk", stream: EngineStream) -> bytes: ...
    def is_heavy(self, choice: int) -> bool:
        """Whether the next chunk of a choice may take long to format."""

    def closing(self, choice: int, chunk: "Chunk") -> bytes:
        """After the last chunk of a choice, which has its finish reason."""

    def ending(self, usage: Usage) -> bytes:
        """After all choices."""

    def failure(self, error: HttpError) -> bytes:
        """Write the error in place of all the rest."""

    def progress(self, progress: PromptProgress, elapsed_s: float) -> bytes: ...
    def whole(self, outputs: Sequence[ChoiceOutput], streams: Sequence[EngineStream], usage: Usage) -> Struct: ...


FormatterMaker = Callable[["Tokenizer", ReplyOptions], Formatter]
