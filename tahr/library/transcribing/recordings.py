"""Recordings as callers have them, as blocks of samples."""

from collections.abc import Iterator
from io import BytesIO, IOBase
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from tahr.errors import ConfigError
from tahr.regular_file import open_regular
from tahr.speech.audio.limits import BLOCK, RATE, AudioLimits, Samples, checked
from tahr.speech.audio.reading import read_audio

Sound = str | PathLike[str] | bytes | Any  # a path, the bytes of a file, an open one, or samples at 16 kHz


def blocks_of(
    sound: Sound,
    limits: AudioLimits = AudioLimits(),  # noqa: B008
    rate: int = RATE,
) -> Iterator[Samples]:
    """Blocks at 16 kHz, or another rate: that of samples too."""
    if isinstance(sound, bytes | bytearray | memoryview):
        sound = BytesIO(sound)
    if isinstance(sound, IOBase):
        yield from read_audio(cast(BinaryIO, sound), limits, rate)
    elif isinstance(sound, str | PathLike):
        path = Path(sound)
        try:
            with open(open_regular(path), "rb") as file:  # noqa: PTH123 (of a descriptor)
                yield from read_audio(file, limits, rate)
        except OSError as error:
            raise ConfigError(f"{sound} cannot be read ({error.strerror}): check the path.") from error
    else:
        yield from checked(iter(cut(sound)), limits, rate)


def cut(samples: Any) -> Iterator[Samples]:
    values = np.asarray(samples)
    if values.ndim != 1 or values.dtype.kind != "f":
        raise ConfigError(
            "A recording is a path, the bytes of a file, or samples as floats within -1 and 1, of one "
            f"channel; an array of {values.dtype} with {values.ndim} axes is none."
        )
    for begin in range(0, len(values), BLOCK):
        yield values[begin : begin + BLOCK].astype(np.float32)
