"""Resampling: a windowed sinc in phases, block by block, with the result of the whole at once."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from tahr.speech.audio.limits import RATE, Samples

CROSSINGS = 48  # zero crossings of the sinc on either side
BETA = 8.6  # shape of the Kaiser window: sound that folds back is 80 dB down
PASSED = 0.95  # the edge, as a part of the lower of both bands
# A rate whose ratio has larger terms is taken for the nearest that has not: a few parts in a million off.
MOST_TERMS = 1000
BLOCK = 1 << 17  # samples that are resampled at once


class Resampler:
    """Samples of one rate at another, as a rule 16 kHz."""

    def __init__(self, rate: int, target: int = RATE):
        ratio = Fraction(target, rate).limit_denominator(MOST_TERMS)
        self.up = ratio.numerator
        self.down = ratio.denominator
        self.half = int(np.ceil(CROSSINGS / min(1.0, self.up / self.down)))  # taps on either side
        self.taps = kernel(self.up, self.down, self.half)
        self._held = np.zeros(self.half - 1, np.float32)  # samples that later ones need
        self._first = 1 - self.half  # place of the first of them
        self._n_out = 0

    def feed(self, block: Samples) -> Samples:
        """Samples that can be made now."""
        held = np.concatenate([self._held, block])
        end = self._first + len(held)  # samples are known up to here
        # Output n reads up to sample n * down // up + half.
        n_known = max(0, -((self.half - end) * self.up // self.down))
        out = np.empty(max(0, n_known - self._n_out), np.float32)
        for i in range(min(self.up, len(out))):
            self._fill_phase(out, i, held)
        self._n_out += len(out)
        begin = self._n_out * self.down // self.up - self.half + 1
        self._held = held[max(0, begin - self._first) :].copy()
        self._first = max(begin, self._first)
        return out

    def _fill_phase(self, out: Samples, i: int, held: Samples) -> None:
        """Every `up`th output from i on, which all have the same phase."""
        place, phase = divmod((self._n_out + i) * self.down, self.up)
        windows = np.lib.stride_tricks.sliding_window_view(held, 2 * self.half)
        begin = place - self.half + 1 - self._first
        n = len(out[i :: self.up])
        out[i :: self.up] = windows[begin : begin + n * self.down : self.down] @ self.taps[phase]

    def finish(self) -> Samples:
        """The rest, after which comes silence."""
        return self.feed(np.zeros(self.half, np.float32))


def kernel(up: int, down: int, half: int) -> Samples:
    """By phase, the weights of the samples around an output: [up, 2 * half]; they add up to 1."""
    width = PASSED * min(1.0, up / down)
    at = np.arange(1 - half, half + 1) - (np.arange(up) / up)[:, None]
    window = np.i0(BETA * np.sqrt(np.maximum(0, 1 - (at / half) ** 2)))
    taps = np.sinc(width * at) * window
    found: Samples = (taps / taps.sum(axis=1, keepdims=True)).astype(np.float32)
    return found


def resampled(rate: int, blocks: Iterator[Samples], target: int = RATE) -> Iterator[Samples]:
    """Blocks of any size at another rate."""
    if rate == target:
        yield from blocks
        return
    resampler = Resampler(rate, target)
    for block in blocks:
        for begin in range(0, len(block), BLOCK):
            yield resampler.feed(block[begin : begin + BLOCK])
    yield resampler.finish()
