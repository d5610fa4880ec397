"""Sound as the bytes of a file, piece by piece."""

from collections.abc import Callable
from struct import pack
from typing import Protocol

import numpy as np

from tahr.errors import ConfigError
from tahr.speech.audio.encode import CODED, CodedSound
from tahr.speech.audio.wav import OPEN_END, PCM
from tahr.speech.codec.tensors import Floats

HEAD_BYTES = 44
MOST_BYTES = OPEN_END - HEAD_BYTES


class SoundFile(Protocol):
    """Bytes of a file whose end is not known yet."""

    def begin(self) -> bytes: ...
    def add(self, samples: Floats) -> bytes: ...
    def finish(self) -> bytes: ...


class PlainSound:
    """16-bit numbers, little-endian, one channel; as WAV, with a header that leaves the length open."""

    def __init__(self, rate: int, has_header: bool):
        self._rate = rate
        self._has_header = has_header

    def begin(self) -> bytes:
        return wav_head(self._rate) if self._has_header else b""

    def add(self, samples: Floats) -> bytes:
        return pcm(samples)

    def finish(self) -> bytes:
        return b""


def wav_head(rate: int, n_bytes: int | None = None) -> bytes:
    """The header of a WAV file with so many bytes of samples; None: nobody knows yet."""
    size = OPEN_END if n_bytes is None else n_bytes
    form = pack("<4sIHHIIHH", b"fmt ", 16, PCM, 1, rate, 2 * rate, 2, 16)
    whole = OPEN_END if n_bytes is None else n_bytes + HEAD_BYTES - 8
    return pack("<4sI4s", b"RIFF", whole, b"WAVE") + form + pack("<4sI", b"data", size)


def pcm(samples: Floats) -> bytes:
    """Samples within +-1 as 16-bit numbers."""
    return (np.clip(samples, -1, 1) * 32767).round().astype("<i2").tobytes()


FORMS: dict[str, Callable[[int], SoundFile]] = {
    "wav": lambda rate: PlainSound(rate, has_header=True),
    "pcm": lambda rate: PlainSound(rate, has_header=False),
    **{name: (lambda rate, name=name: CodedSound(name, rate)) for name in CODED},  # type: ignore[misc]
}
CONTENT_TYPES = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "flac": "audio/flac",
    "aac": "audio/aac",
}


def sound_file(form: str, rate: int) -> SoundFile:
    """A file of that form; refused at once where what makes it is missing."""
    if form not in FORMS:
        raise ConfigError(f"There is no form {form[:40]!r} of sound: choose {', '.join(FORMS)}.")
    return FORMS[form](rate)
