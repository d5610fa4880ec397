"""A text that is spoken as its sound is asked for."""

import logging
from collections.abc import Generator, Iterator
from threading import RLock
from typing import Protocol

import numpy as np

from tahr.engine.engine import Engine
from tahr.errors import ConfigError
from tahr.library.speaking.job import LENGTH, SpeakJob
from tahr.library.speaking.planning import SpeakPlan, plan_speech
from tahr.library.speaking.sound import SoundMaker
from tahr.library.transcribing.recordings import Sound, blocks_of
from tahr.loading.sound.speaking import SpeakingParts
from tahr.speech.audio.limits import AudioLimits
from tahr.speech.codec.speaker import LEAST_SAMPLES, MOST_SAMPLES, RATE
from tahr.speech.codec.tensors import Floats
from tahr.speech.speaking.options import SpeakOptions
from tahr.text.tokens.tokenizer import Tokenizer

log = logging.getLogger("tahr.speech")


class Speaker(Protocol):
    """A loaded model, as much of it as speaking takes."""

    speaking: SpeakingParts | None
    tokenizer: Tokenizer
    engine: Engine
    lock: RLock
    name: str

    def step(self) -> object: ...


class Speech:
    """An iterator of pieces of sound, samples within +-1. Whoever leaves it early closes it: `close`, or `with`."""

    def __init__(self, llm: Speaker, plan: SpeakPlan, options: SpeakOptions):
        parts = parts_of(llm)
        self.sample_rate = parts.codec.sizes.sample_rate
        self._llm = llm
        self._job = SpeakJob(llm.engine, plan, options.chunk_frames)
        self._maker = SoundMaker(parts.codec)
        self._pieces = self._made()

    def __iter__(self) -> Iterator[Floats]:
        return self

    def __next__(self) -> Floats:
        return next(self._pieces)

    def __enter__(self) -> "Speech":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and free what it holds."""
        self._pieces.close()
        with self._llm.lock:
            self._job.close()

    @property
    def reason(self) -> str:
        """Why it ended: "stop", or "length" and "silence" where the model did not find an end."""
        return self._job.reason

    def samples(self) -> Floats:
        """All sound that is left, as one array."""
        return np.concatenate([np.zeros(0, np.float32), *self])

    def _made(self) -> Generator[Floats, None, None]:
        job = self._job
        try:
            with self._llm.lock:
                job.start()
            while True:
                while job.pieces:
                    piece = job.pieces.popleft()
                    samples, is_silent = self._maker.make(piece)
                    if is_silent:
                        with self._llm.lock:
                            job.stop_part(piece.part)
                    yield samples
                if job.finished:
                    note_end(self._llm.name, job)
                    return
                self._llm.step()
                with self._llm.lock:
                    job.advance()
        finally:
            with self._llm.lock:
                job.close()


def note_end(name: str, job: SpeakJob) -> None:
    """Say in the log where a model did not find an end by itself."""
    if job.reason != "stop":
        why = "it had spoken for longer than its text takes" if job.reason == LENGTH else "it was silent for seconds"
        log.warning("%s was stopped after %d frames: %s.", name, job.n_frames, why)


def parts_of(llm: Speaker) -> SpeakingParts:
    if llm.speaking is None:
        raise ConfigError(f"{llm.name} does not speak: load a model that does, such as qwen3-tts.")
    return llm.speaking


def planned(llm: Speaker, text: str, options: SpeakOptions, vector: Floats | None) -> SpeakPlan:
    return plan_speech(parts_of(llm), llm.tokenizer, text, options, vector)


def voice_of(llm: Speaker, sound: Sound) -> Floats:
    """The voice of a recording as a vector."""
    parts = parts_of(llm)
    if parts.voices is None:
        raise ConfigError(f"{llm.name} copies no voices: load a Base model, or leave the recording out.")
    blocks = list(blocks_of(sound, AudioLimits(max_s=MOST_VOICE_S), RATE))
    return vector_of(parts, np.concatenate([np.zeros(0, np.float32), *blocks]))


MOST_VOICE_S = 300  # limit on a recording of a voice


def vector_of(parts: SpeakingParts, samples: Floats) -> Floats:
    """The voice of sound at 24 kHz."""
    assert parts.voices, "the model was looked at before"
    if len(samples) < LEAST_SAMPLES:
        raise ConfigError("The recording of the voice is shorter than a quarter of a second: give some seconds.")
    return parts.voices.vector(samples[:MOST_SAMPLES])
