"""Whether anything in a window may be speech: sound that is loud enough, and does not go on as it is.

Every band is compared with its own usual level in the window: of a tone, hum and steady noise of any colour, bands
rise and fall together or not at all, and the flatness of a frame stays high. Of speech and music it does not.
"""

import numpy as np

from tahr.speech.audio.limits import Samples

LEAST_POWER = 1e-10  # least power of a band
QUIET = 1e-4  # power of a frame, beside the loudest one's: what is below does not count
N_SMOOTHED = 5  # frames of which powers are the mean: single ones of noise are ragged
FLAT = 0.65  # flatness from which on a frame is like its window
LEAST_FRAMES = 10  # frames of speech, at least
LEAST_WINDOW = 200  # frames of a window that can be told: a word alone may be as steady as noise


def is_steady(frames: Samples) -> bool:
    """Whether all of a window's log-mel frames [n_frames, n_bins], as encoders read them, are alike."""
    return len(frames) >= LEAST_WINDOW and int((flatness(frames) < FLAT).sum()) < LEAST_FRAMES


def flatness(frames: Samples) -> Samples:
    """The geometric mean of each frame's bands over their mean, both beside the window's; 1 where it is quiet."""
    power = smoothed(np.power(np.float32(10), frames * 4 - 4)) + np.float32(LEAST_POWER)
    levels = np.log(power)
    levels -= levels.mean(axis=0)  # the mean of logarithms: a click does not move it
    found = np.exp(levels.mean(axis=1)) / np.exp(levels).mean(axis=1)
    loudness = power.sum(axis=1)
    flat: Samples = np.where(loudness > QUIET * loudness.max(), found, 1).astype(np.float32)
    return flat


def smoothed(power: Samples) -> Samples:
    sums = np.cumsum(power, axis=0, dtype=np.float64)
    sums[N_SMOOTHED:] -= sums[:-N_SMOOTHED].copy()
    found: Samples = (sums[N_SMOOTHED - 1 :] / N_SMOOTHED).astype(np.float32)
    return found
