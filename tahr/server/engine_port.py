"""All the server uses of an engine, so that a scripted one can take its place in tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tahr.config import LoraChoice, SamplingParams
from tahr.library.delivery import OnChunk
from tahr.library.embeddings import EmbeddingOptions
from tahr.library.texts.text_inputs import TextInputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tahr.engine.adapters.stack import LoadedAdapter
    from tahr.engine.sampler import SampledToken
    from tahr.engine.stats import StatsSnapshot
    from tahr.text.chat import ChatTemplate
    from tahr.text.tokenizer import Tokenizer
    from tahr.text.tool_calls.parser import ReplyFormat


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far the prefill of a prompt is."""

    n_tokens: int
    n_cached: int
    n_computed: int  # with those from the cache


class EngineStream(Protocol):
    """A request the engine has accepted."""

    async def read(self, on_chunk: OnChunk) -> bool:
        """Call `on_chunk` with every chunk until it returns False (then True), or until none are left (then False).

        A reader that comes back late gets fewer and longer chunks.
        """

    def abort(self) -> None:
        """Free what it holds before the next step; harmless when it has finished."""

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
    inputs: TextInputs  # how texts become tokens, where they are not continued but embedded or compared
    sampling_defaults: SamplingParams
    backend_summary: str
    n_bytes: int  # of memory: weights, and keys and values at most
    n_device_bytes: int  # of them, those in the memory of a GPU

    async def submit(
        self,
        tokens: list[int],
        params: SamplingParams,
        is_reply: bool,
        whole: bool = False,
        reply_format: "ReplyFormat | None" = None,
        n_before: int = 0,
    ) -> EngineStream:
        """Queue a prompt; refused with a TahrError if it could never run.

        A reply is a text of its own, anything else continues the prompt's; its format says how reasoning and tool calls
        are told from text. With `whole` each choice comes as one chunk.
        `n_before` choices of the same request are for prompts before this one.
        """

    async def embed(
        self, texts: Sequence[list[int]], options: EmbeddingOptions, lora: Sequence[LoraChoice] = ()
    ) -> "NDArray[np.float32]":
        """What the model makes of each text, given as tokens: [n_texts, width]."""

    def adapters(self) -> "Sequence[LoadedAdapter]":
        """The adapters that requests may name."""

    async def add_adapter(self, name: str, path: str, scale: float, replaces: bool = False) -> "LoadedAdapter":
        """Load an adapter, maybe in the place of one of that name; refused with a TahrError if it cannot be used."""

    async def remove_adapter(self, name: str) -> "LoadedAdapter":
        """Let no new request use an adapter; those that do finish first."""

    def warm_when_idle(self) -> None:
        """From now on, prepare while there is nothing to do what requests would have to wait for."""

    @property
    def warms(self) -> bool:
        """Whether something of that is left to prepare."""

    def snapshot(self) -> "StatsSnapshot":
        """All counters at this moment."""

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs."""

    @property
    def cpu_s(self) -> float:
        """CPU time of the engine's thread so far."""

    async def close(self) -> None:
        """Stop whatever runs, and end its threads."""
