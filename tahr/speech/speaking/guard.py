"""When a model has spoken long enough: one that does not find an end would go on for minutes."""

import numpy as np

from tahr.speech.codec.tensors import Floats

FRAMES_AT_LEAST = 75  # six seconds
FRAMES_A_TOKEN = 20  # 1.6 s for a token of text; people say three or four a second
QUIET = 10 ** (-60 / 20)
MOST_QUIET_S = 4.0


def most_frames(n_tokens: int) -> int:
    """Limit on the frames of a text."""
    return FRAMES_AT_LEAST + FRAMES_A_TOKEN * n_tokens


class SilenceGuard:
    """Says when nothing has been heard for some seconds."""

    def __init__(self, sample_rate: int):
        self._most = int(MOST_QUIET_S * sample_rate)
        self._n_quiet = 0

    def hears_nothing(self, samples: Floats) -> bool:
        """Whether silence has lasted too long, with these samples."""
        loud = np.flatnonzero(np.abs(samples) > QUIET)
        self._n_quiet = len(samples) - 1 - int(loud[-1]) if len(loud) else self._n_quiet + len(samples)
        return self._n_quiet > self._most
