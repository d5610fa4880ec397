"""What the server asks of an engine. Nothing else of an engine is used, so a scripted one can stand in for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tahr.config import SamplingParams
from tahr.library.delivery import OnChunk

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tahr.engine.sampler import SampledToken
    from tahr.engine.stats import StatsSnapshot
    from tahr.text.chat import ChatTemplate
    from tahr.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How much of a prompt is read."""

    n_tokens: int
    n_cached: int
    n_read: int


class Reply(Protocol):
    """A request the engine has taken."""

    async def read(self, on_chunk: OnChunk) -> bool:
        """Call `on_chunk` with every chunk until it returns False (then True), or until none are left (then False).

        A reader that comes back late gets fewer and longer chunks.
        """

    def abort(self) -> None:
        """Free what it holds before the next step; harmless when it is over."""

    @property
    def progress(self) -> PromptProgress: ...
    @property
    def prompt_logprobs(self) -> "Sequence[SampledToken]":
        """Of the prompt's tokens but the first, if asked for; complete with the first chunk."""


class ServedEngine(Protocol):
    """A loaded model that many requests share."""

    name: str
    tokenizer: "Tokenizer"
    template: "ChatTemplate | None"
    context_size: int
    sampling_defaults: SamplingParams
    backend_summary: str

    async def submit(self, tokens: list[int], params: SamplingParams, is_reply: bool, whole: bool = False) -> Reply:
        """Queue a request; refused with a TahrError if it could never run.

        A reply is a text of its own. One that is wanted whole need not be given in pieces.
        """

    async def embed(self, texts: Sequence[list[int]], pooling: str) -> "NDArray[np.float32]":
        """One vector of length 1 per text, given as tokens: [n_texts, width]."""

    def snapshot(self) -> "StatsSnapshot":
        """All counters at this moment."""

    @property
    def alive(self) -> bool:
        """Whether requests still get tokens."""

    async def close(self) -> None:
        """Stop whatever runs, and let go of threads."""
