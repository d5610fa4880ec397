"""The voice of a recording as a vector: an ECAPA-TDNN over its mel frames, as the released code has it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tahr.speech.audio.mel import filters
from tahr.speech.codec.tensors import Floats, Parts

RATE = 24_000
N_FFT = 1024
HOP = 256
LEAST_POWER = 1e-9
LEAST_LOUDNESS = 1e-5
LEAST_VARIANCE = 1e-12
LEAST_SAMPLES = RATE // 4  # mirror images at the ends need some frames
MOST_SAMPLES = 30 * RATE  # sound behind it says no more about a voice


@dataclass(frozen=True, slots=True)
class SpeakerSizes:
    """A speaker encoder in numbers; the last block joins those before it."""

    n_bins: int
    width_out: int
    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    n_attention: int
    n_squeezed: int
    n_split: int  # parts of a block's channels, each of which reads the one before it


def log_mel(samples: Floats, n_bins: int) -> Floats:
    """[n_frames, n_bins] of sound at 24 kHz."""
    sides = (N_FFT - HOP) // 2
    padded = np.pad(samples, sides, mode="reflect")
    turns = 2 * np.pi * np.arange(N_FFT) / N_FFT
    window = (0.5 - 0.5 * np.cos(turns)).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]
    power = np.square(np.abs(np.fft.rfft(frames * window)))
    loudness = np.sqrt(power + LEAST_POWER) @ filters(n_bins, N_FFT, RATE).T
    found: Floats = np.log(np.maximum(loudness, LEAST_LOUDNESS)).astype(np.float32)
    return found


class SameConv:
    """A convolution that gives as many rows as it reads, with mirror images at both ends."""

    def __init__(self, parts: Parts, n_out: int, n_in: int, n_taps: int = 1, dilation: int = 1):
        self.taps = np.ascontiguousarray(parts.get("weight", n_out, n_in, n_taps).transpose(2, 1, 0))
        self.bias = parts.get("bias", n_out)
        self.dilation = dilation

    def __call__(self, x: Floats) -> Floats:
        reach = (len(self.taps) - 1) * self.dilation
        left = reach // 2
        padded = np.pad(x, ((left, reach - left), (0, 0)), mode="reflect")
        out = np.broadcast_to(self.bias, (len(x), len(self.bias))).copy()
        for i, tap in enumerate(self.taps):
            begin = i * self.dilation
            out += padded[begin : begin + len(x)] @ tap
        return out


class PositiveConv(SameConv):
    """One whose negative numbers become 0."""

    def __call__(self, x: Floats) -> Floats:
        return np.maximum(super().__call__(x), 0)


class SpeakerBlock:
    """Channels in parts, each convolved with what became of the one before; then scaled by their means over time."""

    def __init__(self, sizes: SpeakerSizes, i: int, parts: Parts):
        width = sizes.channels[i]
        part = width // sizes.n_split
        places = [parts.at(f"res2net_block.blocks.{j}.conv") for j in range(sizes.n_split - 1)]
        kernel = sizes.kernels[i]
        dilation = sizes.dilations[i]
        self.n_split = sizes.n_split
        self.first = PositiveConv(parts.at("tdnn1.conv"), width, sizes.channels[i - 1])
        self.split = [PositiveConv(place, part, part, kernel, dilation) for place in places]
        self.last = PositiveConv(parts.at("tdnn2.conv"), width, width)
        self.squeeze = PositiveConv(parts.at("se_block.conv1"), sizes.n_squeezed, width)
        self.expand = SameConv(parts.at("se_block.conv2"), width, sizes.n_squeezed)

    def __call__(self, x: Floats) -> Floats:
        first, *others = np.split(self.first(x), self.n_split, axis=1)
        made = [first]
        for i, (each, convolve) in enumerate(zip(others, self.split, strict=True)):
            made.append(convolve(each + made[-1] if i else each))
        rows = self.last(np.concatenate(made, axis=1))
        scores = self.expand(self.squeeze(rows.mean(axis=0, keepdims=True)))
        scaled: Floats = rows / (1 + np.exp(-scores))
        return x + scaled


class SpeakerEncoder:
    """Sound in, a vector out."""

    def __init__(self, sizes: SpeakerSizes, parts: Parts):
        channels = sizes.channels
        wide = channels[-1]
        last = len(channels) - 1
        inner = range(1, last)
        joined = sum(channels[i] for i in inner)
        first = parts.at("blocks.0.conv")
        pooling = parts.at("asp")
        self.sizes = sizes
        self.first = PositiveConv(first, channels[0], sizes.n_bins, sizes.kernels[0], sizes.dilations[0])
        self.blocks = [SpeakerBlock(sizes, i, parts.at(f"blocks.{i}")) for i in inner]
        self.joined = PositiveConv(parts.at("mfa.conv"), wide, joined, sizes.kernels[last], sizes.dilations[last])
        self.attend = PositiveConv(pooling.at("tdnn.conv"), sizes.n_attention, 3 * wide)
        self.scores = SameConv(pooling.at("conv"), wide, sizes.n_attention)
        self.out = SameConv(parts.at("fc"), sizes.width_out, 2 * wide)

    def vector(self, samples: Floats) -> Floats:
        """The voice of sound at 24 kHz."""
        rows = self.first(log_mel(samples[:MOST_SAMPLES], self.sizes.n_bins))
        made = []
        for block in self.blocks:
            rows = block(rows)
            made.append(rows)
        rows = self.joined(np.concatenate(made, axis=1))
        weights = self._weights(rows)
        pooled = np.concatenate(statistics(rows, weights))
        found: Floats = self.out(pooled[None])[0]
        return found

    def _weights(self, rows: Floats) -> Floats:
        """How much each row counts, by channel."""
        even = np.full_like(rows, 1 / len(rows))
        around = [np.broadcast_to(each, rows.shape) for each in statistics(rows, even)]
        context = np.concatenate([rows, *around], axis=1)
        inner = np.tanh(self.attend(context))
        scores = self.scores(inner)
        weights = np.exp(scores - scores.max(axis=0))
        found: Floats = weights / weights.sum(axis=0)
        return found


def statistics(rows: Floats, weights: Floats) -> Sequence[Floats]:
    """Means and deviations over time, weighted."""
    mean = (weights * rows).sum(axis=0)
    away = np.square(rows - mean)
    variance = (weights * away).sum(axis=0)
    return mean, np.sqrt(np.maximum(variance, np.float32(LEAST_VARIANCE)))
