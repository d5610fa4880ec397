"""How much a recording may take, whatever its headers say."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from tahr.speech.audio.errors import AudioTooLong, BadAudio

Samples = NDArray[np.float32]

RATE = 16_000  # samples a second of everything behind this folder
LEAST_RATE = 1_000
MOST_RATE = 384_000
MOST_CHANNELS = 32
BLOCK_S = 10  # seconds of a recording that are in memory at once, as they were recorded
BLOCK = BLOCK_S * RATE  # limit on the samples of a block at 16 kHz
LOUDEST = 1e6  # limit on a sample, where full scale is 1


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """Limits of one recording; None: there is none."""

    max_s: float | None = None

    def n_samples(self, rate: int = RATE) -> float:
        return inf if self.max_s is None else self.max_s * rate


def check_shape(rate: int, n_channels: int) -> None:
    """Refuse rates and channels that no recording of speech has: both multiply the memory of a block."""
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise BadAudio(
            f"The recording says it has {rate} samples a second; Tahr reads {LEAST_RATE} to {MOST_RATE}: convert it."
        )
    if not 1 <= n_channels <= MOST_CHANNELS:
        raise BadAudio(f"The recording says it has {n_channels} channels; Tahr reads 1 to {MOST_CHANNELS}: convert it.")


def in_blocks(parts: Iterator[Samples]) -> Iterator[Samples]:
    """The samples in blocks of bounded size: a frame of PCM may be as long as its file."""
    for part in parts:
        for begin in range(0, len(part), BLOCK):
            yield part[begin : begin + BLOCK]


def checked(blocks: Iterator[Samples], limits: AudioLimits, rate: int = RATE) -> Iterator[Samples]:
    """The blocks, while they hold sound and are no more than allowed."""
    n = 0
    for block in blocks:
        n += len(block)
        if n > limits.n_samples(rate):
            raise AudioTooLong(f"The recording lasts longer than the {limits.max_s:g} s that are allowed: cut it.")
        if len(block) and not np.abs(block).max() <= LOUDEST:  # a NaN compares as false
            raise BadAudio("The recording has samples that are no numbers, or far beyond full scale: convert it again.")
        yield block
