"""A recording that is written down as its segments are asked for."""

from collections.abc import Generator, Iterable, Iterator
from functools import partial
from threading import RLock
from typing import Protocol

from tahr.engine.engine import Engine
from tahr.errors import ConfigError
from tahr.library.transcribing.job import TranscriptionJob
from tahr.models.config.record import ModelConfig
from tahr.speech.audio.limits import Samples
from tahr.speech.audio.windows import SoundReader
from tahr.speech.decoding.options import TranscribeOptions
from tahr.speech.decoding.results import Heard, SpokenSegment
from tahr.speech.decoding.tokens import SpeechTokens
from tahr.speech.decoding.transcript import Transcript
from tahr.text.tokens.tokenizer import Tokenizer


class Transcriber(Protocol):
    """A loaded model, as much of it as writing down recordings takes."""

    speech: SpeechTokens | None
    model_config: ModelConfig
    tokenizer: Tokenizer
    engine: Engine
    lock: RLock

    def step(self) -> object: ...


class Transcription:
    """An iterator of segments. Whoever leaves it early closes it: `close`, or `with`."""

    def __init__(self, llm: Transcriber, blocks: Iterable[Samples], options: TranscribeOptions):
        self.heard: Heard | None = None  # known before the first segment
        self.recording = recording_of(llm.model_config, blocks, options)
        self._llm = llm
        self._job = job_of(llm, options)
        self._segments = self._found()

    def __iter__(self) -> Iterator[SpokenSegment]:
        return self

    def __next__(self) -> SpokenSegment:
        return next(self._segments)

    def __enter__(self) -> "Transcription":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and free what it holds."""
        self._segments.close()
        with self._llm.lock:
            self._job.close()

    @property
    def language(self) -> str:
        """The code of the language."""
        return self.heard.language if self.heard else "en"

    @property
    def seconds(self) -> float:
        """How much of the recording has been read."""
        return self.recording.seconds

    def _found(self) -> Generator[SpokenSegment, None, None]:
        job = self._job
        try:
            with self._llm.lock:
                job.start()
            while True:
                while job.found:
                    found = job.found.popleft()
                    if isinstance(found, SpokenSegment):
                        yield found
                    else:
                        self.heard = found
                if job.finished:
                    return
                if job.host_work is None:
                    self._llm.step()
                    with self._llm.lock:
                        job.advance()
                else:
                    result = job.host_work(self.recording)
                    with self._llm.lock:
                        job.go_on(result)
        finally:
            with self._llm.lock:
                job.close()


def recording_of(config: ModelConfig, blocks: Iterable[Samples], options: TranscribeOptions) -> SoundReader:
    """Windows as a model reads them."""
    audio = config.audio
    if not audio:
        raise ConfigError(f"A {config.family} model reads no recordings: choose a Whisper.")
    return SoundReader(blocks, audio.n_frames, audio.n_bins, options.passes_silence)


def job_of(llm: Transcriber, options: TranscribeOptions, salt: str = "") -> TranscriptionJob:
    """The job of a recording on a model's engine."""
    assert llm.speech, "the model was looked at before"
    encode = partial(llm.tokenizer.encode, add_special=False, parse_special=False)
    return TranscriptionJob(
        llm.engine, llm.model_config, Transcript(llm.speech, options, encode, llm.tokenizer.decode), salt
    )
