"""Log-mel frames: 25 ms of sound every 10 ms, as the loudness of bands that lie as the ear hears them."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from tahr.speech.audio.limits import RATE, Samples

N_FFT = 400
HOP = 160
N_FREQUENCIES = N_FFT // 2 + 1
LEAST = 1e-10
MOST_FRAMES = 256  # limit on frames whose spectra are in memory at once
RANGE = 8.0  # decades: sound 80 dB below the loudest counts as silence
# The scale is linear up to 1 kHz and logarithmic above it.
LINEAR_HZ = 200 / 3
BEND_HZ = 1000.0
BEND = BEND_HZ / LINEAR_HZ
STEP = np.log(6.4) / 27


def hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mels < BEND, LINEAR_HZ * mels, BEND_HZ * np.exp(STEP * (mels - BEND)))


@cache
def filters(n_bins: int, n_fft: int = N_FFT, rate: int = RATE) -> Samples:
    """Triangles of equal area between neighbouring bands: [n_bins, n_fft // 2 + 1]."""
    top = BEND + np.log(rate / 2 / BEND_HZ) / STEP
    edges = hertz(np.linspace(0, top, n_bins + 2))
    frequencies = np.linspace(0, rate / 2, n_fft // 2 + 1)
    slopes = edges[:, None] - frequencies
    widths = np.diff(edges)[:, None]
    rising = -slopes[:-2] / widths[:-1]
    falling = slopes[2:] / widths[1:]
    areas = 2 / (edges[2:] - edges[:-2])
    found: Samples = (np.maximum(0, np.minimum(rising, falling)) * areas[:, None]).astype(np.float32)
    return found


@cache
def window() -> Samples:
    """A periodic Hann window."""
    found: Samples = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)).astype(np.float32)
    return found


def log_mel(samples: Samples, n_frames: int, n_bins: int) -> Samples:
    """[n_frames, n_bins] of samples, the first of which stands N_FFT // 2 before the middle of the first frame."""
    n = (n_frames - 1) * HOP + N_FFT
    padded = np.pad(samples[:n], (0, max(0, n - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]
    loudness = np.log10(np.maximum(power_of(frames) @ filters(n_bins).T, LEAST))
    held = np.maximum(loudness, loudness.max() - np.float32(RANGE))
    found: Samples = ((held + 4) / 4).astype(np.float32)
    return found


def power_of(frames: Samples) -> Samples:
    """The power of each frequency: [n_frames, N_FREQUENCIES]."""
    found = np.empty((len(frames), N_FREQUENCIES), np.float32)
    for begin in range(0, len(frames), MOST_FRAMES):
        part = slice(begin, begin + MOST_FRAMES)
        found[part] = np.abs(np.fft.rfft(frames[part] * window())) ** 2
    return found


def reflected(samples: Samples) -> Samples:
    """Samples from the beginning of a recording, with what `log_mel` reads before them: their mirror image."""
    n = N_FFT // 2
    whole = np.pad(samples, (0, max(0, n + 1 - len(samples))))
    return np.concatenate([whole[n:0:-1], samples])
