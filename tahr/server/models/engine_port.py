"""All the server uses of an engine, so that a scripted one can take its place in tests."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tahr.config import LoraChoice, SamplingParams
from tahr.generation.delivery import OnChunk
from tahr.library.embeddings import EmbeddingOptions, Item
from tahr.library.inputs.text_inputs import TextInputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tahr.engine.sampling.sampling_state import SampledToken
    from tahr.engine.sequences.adapter_stack import LoadedAdapter
    from tahr.engine.sequences.resolved import ResolvedRequest
    from tahr.engine.sequences.stats import StatsSnapshot
    from tahr.speech.decoding.options import TranscribeOptions
    from tahr.speech.decoding.results import Heard, SpokenSegment
    from tahr.speech.speaking.options import SpeakOptions
    from tahr.text.templates.chat import ChatTemplate
    from tahr.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far the prefill of a prompt is."""

    n_tokens: int
    n_cached: int
    n_computed: int  # tokens computed or taken from the cache


class EngineStream(Protocol):
    """A request the engine has accepted."""

    async def read(self, on_chunk: OnChunk) -> bool:
        """Call `on_chunk` with every chunk until it returns False (then True), or until none are left (then False).

        A reader that comes back late gets fewer and longer chunks.
        """

    def end_early(self) -> None:
        """End it with what it has: its last chunks come, and their finish reason is `abort`."""

    def abort(self) -> None:
        """Free what it holds before the next step; harmless when it has finished."""

    @property
    def progress(self) -> PromptProgress: ...
    @property
    def chunk_ends(self) -> "Sequence[tuple[int, float]]":
        """Tokens of the prompt that each step but the last had come to, and when."""

    @property
    def prompt_logprobs(self) -> "Sequence[SampledToken]":
        """Log-probabilities of the prompt's tokens but the first, if requested; complete with the first chunk."""


class SpokenText(Protocol):
    """The text of a recording, segment by segment as it is found."""

    @property
    def heard(self) -> "Heard | None":
        """The language, known before the first segment."""

    @property
    def seconds(self) -> float:
        """How much of the recording has been read."""

    @property
    def n_windows(self) -> int: ...
    @property
    def n_fallbacks(self) -> int: ...
    def __aiter__(self) -> "AsyncIterator[SpokenSegment]": ...
    def close(self) -> None:
        """Free what it holds before the next step; harmless when it has ended."""


class SpokenSound(Protocol):
    """The sound of a text, piece by piece as it is made."""

    @property
    def n_frames(self) -> int: ...
    @property
    def reason(self) -> str:
        """Why it ended."""

    def __aiter__(self) -> "AsyncIterator[NDArray[np.float32]]": ...
    def close(self) -> None:
        """Free what it holds before the next step; harmless when it has ended."""


class SpeakingFacts(NamedTuple):
    """A model that speaks, as far as routes ask."""

    voices: list[str]
    languages: list[str]
    sample_rate: int
    description: str  # words for a voice, where a model makes it of words
    voice_vector: "Callable[[NDArray[np.float32]], NDArray[np.float32]]"  # made of sound at 24 kHz


class ServedEngine(Protocol):
    """A loaded model that many requests share."""

    name: str
    tokenizer: "Tokenizer"
    template: "ChatTemplate | None"
    context_size: int
    speaking: SpeakingFacts | None  # None: it does not speak
    reads_recordings: bool  # True: recordings are all that it reads
    inputs: TextInputs  # tokens of texts that are embedded or compared
    sampling_defaults: SamplingParams
    backend_summary: str
    n_bytes: int  # limit on memory: weights, keys and values
    n_weight_bytes: int  # the weights' part of it; the rest is reserved for keys and values
    n_device_bytes: int  # the part in the memory of a GPU
    n_host_weight_bytes: int  # weights in the host's memory of a model that runs on a GPU

    async def submit(
        self,
        resolved: "ResolvedRequest",
        whole: bool = False,
    ) -> EngineStream:
        """Queue a request; refused with a TahrError if it could never run. With `whole` each choice is one chunk."""

    async def embed(
        self,
        items: Sequence[Item],
        options: EmbeddingOptions,
        lora: Sequence[LoraChoice] = (),
        background: bool = False,
    ) -> "NDArray[np.float32]":
        """Compute the vector of each text, given as tokens, and of each image: [n_items, width].

        What is done in the background waits while anything else is there to do.
        """

    async def transcribe(
        self, data: bytes | memoryview, options: "TranscribeOptions", max_s: int, salt: str = ""
    ) -> SpokenText:
        """Queue a recording, given as a file, of at most so many seconds."""

    async def speak(
        self,
        text: str,
        options: "SpeakOptions",
        vector: "NDArray[np.float32] | None" = None,
        salt: str = "",
    ) -> SpokenSound:
        """Queue a text to be spoken, with the vector of a voice or one of the model's."""

    def adapters(self) -> "Sequence[LoadedAdapter]":
        """The adapters that requests may name."""

    async def add_adapter(self, name: str, path: str, scale: float, replaces: bool = False) -> "LoadedAdapter":
        """Load an adapter, maybe in the place of one of that name; refused with a TahrError if it cannot be used."""

    async def remove_adapter(self, name: str) -> "LoadedAdapter":
        """Let no new request use an adapter; those that do finish first."""

    def warm_when_idle(self) -> None:
        """Prepare while idle, from now on, the steps that requests would have to wait for."""

    @property
    def warms(self) -> bool:
        """Whether something of that is left to prepare."""

    async def sleep(self) -> int:
        """Give memory back until it is woken; the bytes that it was. Refused with a TahrError if it cannot."""

    async def wake(self) -> None:
        """Take the memory again; an error leaves it asleep."""

    def snapshot(self) -> "StatsSnapshot":
        """All counters at this moment."""

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs."""

    @property
    def weights_changed(self) -> bool:
        """Whether a file that it still reads is no longer what was loaded, so that requests fail."""

    @property
    def fault(self) -> str:
        """Why no step can be computed any more, in a sentence without paths; empty if they can."""

    @property
    def cpu_s(self) -> float:
        """CPU time of the engine's thread so far."""

    async def close(self) -> None:
        """Stop whatever runs, and end its threads."""
