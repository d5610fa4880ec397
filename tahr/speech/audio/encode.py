"""Samples become MP3, Opus, FLAC or AAC, with PyAV, piece by piece."""

from typing import Any, NamedTuple

import numpy as np

from tahr.errors import ConfigError, install_extra
from tahr.speech.audio.limits import Samples


class Coding(NamedTuple):
    """PyAV's names for a container, a codec and the form of its samples."""

    container: str
    codec: str
    layout: str


CODED = {
    "mp3": Coding("mp3", "libmp3lame", "s16p"),
    "opus": Coding("ogg", "libopus", "s16"),
    "flac": Coding("flac", "flac", "s16"),
    "aac": Coding("adts", "aac", "fltp"),
}


class Collected:
    """A file that can only be written on: what was written is taken away."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        found = b"".join(self._parts)
        self._parts.clear()
        return found


class CodedSound:
    """A file of sound in the making."""

    def __init__(self, name: str, rate: int):
        try:
            import av
        except ImportError as error:
            raise ConfigError(
                f"Sound as {name} needs PyAV, which is not installed: run {install_extra('audio')}, or ask for wav."
            ) from error
        coding = CODED[name]
        self._av: Any = av
        self._out = Collected()
        self._file: Any = av.open(self._out, mode="w", format=coding.container)
        self._stream: Any = self._file.add_stream(coding.codec, rate=rate, layout="mono")
        self._resampler: Any = av.AudioResampler(format=coding.layout, layout="mono", rate=rate)
        self._rate = rate
        self._n = 0

    def begin(self) -> bytes:
        return b""

    def add(self, samples: Samples) -> bytes:
        """The bytes that are ready once these samples have come."""
        if not len(samples):
            return b""
        values = (np.clip(samples, -1, 1) * 32767).round().astype(np.int16)
        frame = self._av.AudioFrame.from_ndarray(values[None], format="s16", layout="mono")
        frame.sample_rate = self._rate
        frame.pts = self._n
        self._n += len(values)
        for each in self._resampler.resample(frame):
            self._file.mux(self._stream.encode(each))
        return self._out.take()

    def finish(self) -> bytes:
        """The rest of the file."""
        for each in self._resampler.resample(None):
            self._file.mux(self._stream.encode(each))
        self._file.mux(self._stream.encode(None))
        self._file.close()
        return self._out.take()
