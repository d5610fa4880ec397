"""A recording as samples at 16 kHz, in this process."""

from collections.abc import Iterator
from typing import BinaryIO, cast

from tahr.speech.audio.decode import decoded
from tahr.speech.audio.kinds import HEAD_BYTES, WAV, kind_of
from tahr.speech.audio.limits import RATE, AudioLimits, Samples, checked, in_blocks
from tahr.speech.audio.resample import resampled
from tahr.speech.audio.wav import read_wav


class Peeked:
    """A file whose beginning has been looked at: pipes cannot go back."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.head = file.read(HEAD_BYTES)
        self._left = self.head

    def read(self, n: int = -1) -> bytes:
        """At most n bytes; without n, all that are left."""
        if n < 0:
            data = self._left + self._file.read()
            self._left = b""
            return data
        data = self._left[:n]
        self._left = self._left[n:]
        return data + self._file.read(n - len(data)) if len(data) < n else data


def read_audio(
    file: BinaryIO,
    limits: AudioLimits = AudioLimits(),  # noqa: B008
    target: int = RATE,
) -> Iterator[Samples]:
    """Blocks at 16 kHz, or another rate.

    What is wrong with a file is said when the first block is asked for, or a later one.
    """
    peeked = Peeked(file)
    kind = kind_of(peeked.head)
    if kind is WAV:
        rate, blocks = read_wav(cast(BinaryIO, peeked))
    else:
        if file.seekable():
            file.seek(0)
        rate, blocks = decoded(file if file.seekable() else cast(BinaryIO, peeked), kind)
    return checked(in_blocks(resampled(rate, blocks, target)), limits, target)
