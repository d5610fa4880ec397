"""Results of a recording: texts and times."""

import zlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowText:
    """The text of a window, and how sure the model was."""

    tokens: tuple[int, ...]  # times among them; no end token
    text: str
    mean_logprob: float
    no_speech: float  # probability that nothing is said
    temperature: float

    @property
    def compression_ratio(self) -> float:
        data = self.text.encode()
        return len(data) / len(zlib.compress(data))


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word, with the space before it and its punctuation, and when it is said."""

    text: str
    start: float
    end: float
    probability: float


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """A part of a recording with its text, as the window found it that it belongs to."""

    id: int
    seek: int  # first frame of the window, of which a second has 100
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    window: WindowText
    words: tuple[SpokenWord, ...] | None = None  # None: they were not wanted


@dataclass(frozen=True, slots=True)
class Heard:
    """The language of a recording, and its probability where it was not told."""

    language: str
    probability: float
