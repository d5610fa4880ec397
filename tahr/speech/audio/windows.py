"""Windows of a recording that is read as it is needed: of a long one, little more than a window is in memory."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from tahr.speech.audio.gate import LEAST_WINDOW, is_steady
from tahr.speech.audio.limits import Samples
from tahr.speech.audio.mel import HOP, N_FFT, log_mel, reflected
from tahr.speech.audio.rows import input_rows

BEFORE = N_FFT // 2  # samples before the middle of a frame
NO_ROWS = np.zeros((0, 0), np.float32)
SILENT = 10 ** (-65 / 20)  # the loudest sample of what counts as no sound, where full scale is 1


class SoundWindow(NamedTuple):
    """A part of a recording, as long as a model reads at once."""

    rows: Samples  # input rows of the encoder; none where it is silent
    n_frames: int  # frames before the recording ends
    is_last: bool  # nothing comes after it
    is_silent: bool


class SoundReader:
    """Frames of a recording by their number, the first of which may only grow."""

    def __init__(self, blocks: Iterable[Samples], n_frames: int, n_bins: int, passes_steady: bool = False):
        self._blocks: Iterator[Samples] = iter(blocks)
        self._n_frames = n_frames
        self._n_bins = n_bins
        self._passes_steady = passes_steady  # windows without anything that may be speech count as silent
        self._held = np.zeros(0, np.float32)
        self._first = 0  # place of the first sample held
        self._has_ended = False

    @property
    def seconds(self) -> float:
        """How much has been read."""
        return (self._first + len(self._held)) / (100 * HOP)

    def read(self, frame: int) -> SoundWindow | None:
        """The window from a frame on; None where no whole frame is left."""
        begin = max(0, frame * HOP - BEFORE)
        end = (frame + self._n_frames) * HOP
        self._forget(begin)
        self._fill(end + BEFORE)
        n_samples = self._first + len(self._held) - frame * HOP
        n_frames = min(self._n_frames, max(0, n_samples) // HOP)
        if not n_frames:
            return None
        samples = self._held[begin - self._first :]
        is_silent = not np.abs(samples[: end - begin]).max() > SILENT
        is_last = self._has_ended and n_samples <= self._n_frames * HOP
        if is_silent:
            return SoundWindow(NO_ROWS, n_frames, is_last, is_silent)
        frames = log_mel(reflected(samples) if frame == 0 else samples, self._n_frames, self._n_bins)
        if self._passes_steady and is_steady(frames[:n_frames]):
            # The end is looked at again: a word may begin there, and a short rest could not be told.
            return SoundWindow(
                NO_ROWS, n_frames if is_last else max(n_frames // 2, n_frames - LEAST_WINDOW), is_last, True
            )
        frames[n_frames:] = 0  # zeros, not silence, stand behind the end in OpenAI's program
        return SoundWindow(input_rows(frames), n_frames, is_last, is_silent)

    def _forget(self, begin: int) -> None:
        assert begin >= self._first, "a recording is read forwards"
        n = min(begin - self._first, len(self._held))
        self._held = self._held[n:].copy()
        self._first += n

    def _fill(self, end: int) -> None:
        """Read up to a sample, or to the end."""
        parts = [self._held]
        n = self._first + len(self._held)
        while n < end and not self._has_ended:
            block = next(self._blocks, None)
            self._has_ended = block is None
            if block is not None:
                parts.append(block)
                n += len(block)
        self._held = np.concatenate(parts)
