"""A loaded model as the server uses it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tahr.config import LoraChoice
from tahr.errors import ConfigError
from tahr.library.async_llm import AsyncLLM
from tahr.library.embeddings import EmbeddingOptions, Item
from tahr.library.llm import LLM
from tahr.library.speaking.speech import vector_of
from tahr.library.speaking.streams import SpeechStream
from tahr.library.stream import Stream
from tahr.library.transcribing.streams import TranscriptStream
from tahr.server.models.engine_port import PromptProgress, SpeakingFacts
from tahr.server.models.idle_warming import IdleWarming
from tahr.speech.audio.process import Buffer
from tahr.speech.decoding.options import TranscribeOptions
from tahr.speech.speaking.options import SpeakOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tahr.engine.sampling.sampling_state import SampledToken
    from tahr.engine.sequences.adapter_stack import LoadedAdapter
    from tahr.engine.sequences.resolved import ResolvedRequest
    from tahr.engine.sequences.stats import StatsSnapshot


class LlmStream:
    """A stream of an `AsyncLLM`, with what a client may want to see beside the text."""

    def __init__(self, stream: Stream):
        self._stream = stream
        self._first = stream.request.sequences[0]
        self.read = stream.read

    def end_early(self) -> None:
        """End it with what it has."""
        self._stream.end_early()

    def abort(self) -> None:
        """Free what it holds before the next step."""
        self._stream.close()

    @property
    def progress(self) -> PromptProgress:
        seq = self._first
        return PromptProgress(seq.n_prompt, seq.result.stats.n_cached_tokens, min(seq.computed, seq.n_prompt))

    @property
    def chunk_ends(self) -> Sequence[tuple[int, float]]:
        return self._first.result.stats.chunk_ends

    @property
    def prompt_logprobs(self) -> "Sequence[SampledToken]":
        return self._first.result.prompt_logprobs


class LlmEngine:
    """An `AsyncLLM` as the server sees it."""

    def __init__(self, llm: AsyncLLM):
        self._llm = llm
        self._warming: IdleWarming | None = None
        inner = llm.llm
        self._meter = inner.engine.measure_energy()
        self.name = inner.name
        self.tokenizer = inner.tokenizer
        self.template = inner.template
        self.context_size = inner.context_size
        self.inputs = inner.inputs
        self.speaking = speaking_facts(inner)
        self.reads_recordings = inner.speech is not None
        self.sampling_defaults = inner.sampling_defaults
        self.backend_summary = inner.backend_summary
        self.n_bytes = inner.n_bytes
        self.n_device_bytes = inner.n_device_bytes
        self.n_weight_bytes = inner.n_weight_bytes
        self.n_host_weight_bytes = inner.n_host_weight_bytes

    async def submit(self, resolved: "ResolvedRequest", whole: bool = False) -> LlmStream:
        """Queue a request."""
        return LlmStream(await self._llm.submit_resolved(resolved, whole))

    async def embed(
        self,
        items: Sequence[Item],
        options: EmbeddingOptions,
        lora: Sequence[LoraChoice] = (),
        background: bool = False,
    ) -> "NDArray[np.float32]":
        """Compute the vector of each text, given as tokens, and of each image."""
        return await self._llm.vectors(items, options, lora, background)

    async def transcribe(
        self, data: Buffer, options: TranscribeOptions, max_s: int, salt: str = ""
    ) -> TranscriptStream:
        """Queue a recording."""
        return await self._llm.transcribe(data, options, max_s=max_s, salt=salt)

    async def speak(
        self, text: str, options: SpeakOptions, vector: "NDArray[np.float32] | None" = None, salt: str = ""
    ) -> SpeechStream:
        """Queue a text to be spoken."""
        return await self._llm.speak(text, options, vector, salt)

    def adapters(self) -> "Sequence[LoadedAdapter]":
        """The adapters that requests may name."""
        return self._llm.llm.loras()

    async def add_adapter(self, name: str, path: str, scale: float, replaces: bool = False) -> "LoadedAdapter":
        """Load an adapter."""
        return await self._llm.add_lora(name, path, scale, replaces=replaces)

    async def remove_adapter(self, name: str) -> "LoadedAdapter":
        """Let no new request use an adapter."""
        return await self._llm.remove_lora(name)

    def warm_when_idle(self) -> None:
        """Prepare steps of all sizes while there is nothing to do."""
        self._warming = IdleWarming(self._llm.llm.engine, self.name)
        self._llm.when_idle(self._warming.run)

    @property
    def warms(self) -> bool:
        return self._warming is not None and not self._warming.finished

    async def sleep(self) -> int:
        """Give memory back until it is woken."""
        n_bytes = await self._llm.sleep()
        self._warming = None
        return n_bytes

    async def wake(self) -> None:
        """Take the memory again, and prepare its steps anew."""
        await self._llm.wake()
        self.warm_when_idle()

    def snapshot(self) -> "StatsSnapshot":
        """All counters at this moment."""
        return self._llm.stats()

    @property
    def alive(self) -> bool:
        return self._llm.alive

    @property
    def weights_changed(self) -> bool:
        return self._llm.llm.engine.executor.weights_changed()

    @property
    def fault(self) -> str:
        return self._llm.llm.engine.executor.fault

    @property
    def cpu_s(self) -> float:
        return self._llm.cpu_s

    async def close(self) -> None:
        """Stop whatever runs."""
        if self._meter:
            self._meter.close()
        await self._llm.close()


def speaking_facts(llm: LLM) -> SpeakingFacts | None:
    parts = llm.speaking
    if parts is None:
        return None

    def voice_vector(samples: "NDArray[np.float32]") -> "NDArray[np.float32]":
        if parts.voices is None:
            raise ConfigError(f"{llm.name} copies no voices: leave the recording out, or name a Base model.")
        return vector_of(parts, samples)

    languages = [name for name in parts.tokens.languages if "dialect" not in name]
    description = "a clear voice" if parts.tokens.kind == "voice_design" else ""
    rate = parts.codec.sizes.sample_rate
    return SpeakingFacts(list(parts.tokens.speakers), languages, rate, description, voice_vector)
