"""The decoder of a codec: frames of codes in, sound out. A stream of it may be fed in pieces; the sound is that of all
frames at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tahr.speech.codec.activations import Snake, gelu, layer_norm
from tahr.speech.codec.attention import WindowedLayer, turns_of
from tahr.speech.codec.convolutions import DepthwiseConv, Upsampling, conv
from tahr.speech.codec.sizes import CodecSizes
from tahr.speech.codec.tensors import Floats, Parts

Codes = NDArray[np.int32]

MOST_FRAMES = 32  # limit on frames that are decoded at once: memory is some MB each
LEAST_USAGE = 1e-5
NEXT_EPS = 1e-6
N_TAPS = 7
DILATIONS = (1, 3, 9)
N_STRIDES = 2  # strides of a kernel in the blocks that make sound


class SoundStage(Protocol):
    """A step on the way from codes to sound, which keeps what later rows need."""

    def start(self) -> Any:
        """The rows that are kept before the first one."""

    def run(self, x: Floats, before: Any) -> tuple[Floats, Any]:
        """The result of some rows, and what is to be kept."""


class Chain:
    """Stages one after the other."""

    def __init__(self, stages: Sequence[SoundStage]):
        self.stages = stages

    def start(self) -> list[Any]:
        return [stage.start() for stage in self.stages]

    def run(self, x: Floats, before: list[Any]) -> tuple[Floats, list[Any]]:
        kept = []
        for stage, each in zip(self.stages, before, strict=True):
            x, more = stage.run(x, each)
            kept.append(more)
        return x, kept


class Transformer:
    """Layers that see a window of rows, between two linears. What is kept: how many rows came, and what layers saw."""

    def __init__(self, sizes: CodecSizes, parts: Parts):
        layers = sizes.layers
        width = layers.width
        outer = sizes.latent_width
        places = [parts.at(f"layers.{i}") for i in range(layers.n_layers)]
        self.sizes = layers
        self.into = parts.matrix("input_proj", width, outer)
        self.into_bias = parts.get("input_proj.bias", width)
        self.layers = [WindowedLayer(layers, place) for place in places]
        # The gain of the last norm is a part of the linear behind it.
        gain = parts.get("norm.weight", width)
        out = parts.matrix("output_proj", outer, width)
        self.out = out * gain[:, None]
        self.out_bias = parts.get("output_proj.bias", outer)

    def start(self) -> tuple[int, list[Any]]:
        return 0, [layer.start() for layer in self.layers]

    def run(self, x: Floats, before: tuple[int, list[Any]]) -> tuple[Floats, tuple[int, list[Any]]]:
        n_before, seen = before
        turns = turns_of(n_before, len(x), self.sizes)
        x = x @ self.into + self.into_bias
        kept = []
        for layer, each in zip(self.layers, seen, strict=True):
            x, more = layer.run(x, each, turns)
            kept.append(more)
        mean = np.square(x).mean(axis=-1, keepdims=True)
        root = np.sqrt(mean + np.float32(self.sizes.eps))
        out = x / root @ self.out + self.out_bias
        n_seen = n_before + len(x)
        return out, (n_seen, kept)


class NextBlock:
    """A convolution of each channel, a norm and an MLP, added to the rows; the scale of what is added is in the MLP."""

    def __init__(self, width: int, parts: Parts):
        inner = 4 * width
        scale = parts.get("gamma", width)
        down = parts.matrix("pwconv2", width, inner)
        down_bias = parts.get("pwconv2.bias", width)
        place = parts.at("dwconv.conv")
        self.conv = DepthwiseConv(place, width, N_TAPS)
        self.gain = parts.get("norm.weight", width)
        self.bias = parts.get("norm.bias", width)
        self.up = parts.matrix("pwconv1", inner, width)
        self.up_bias = parts.get("pwconv1.bias", inner)
        self.down = down * scale
        self.down_bias = down_bias * scale

    def start(self) -> Floats:
        return self.conv.start()

    def run(self, x: Floats, before: Floats) -> tuple[Floats, Floats]:
        mixed, kept = self.conv.run(x, before)
        normed = layer_norm(mixed, self.gain, self.bias, NEXT_EPS)
        wide = normed @ self.up + self.up_bias
        delta = gelu(wide) @ self.down + self.down_bias
        return x + delta, kept


class Activated:
    """A stage behind a Snake."""

    def __init__(self, snake: Snake, stage: SoundStage):
        self.snake = snake
        self.stage = stage

    def start(self) -> Any:
        return self.stage.start()

    def run(self, x: Floats, before: Any) -> tuple[Floats, Any]:
        return self.stage.run(self.snake(x), before)


class ResidualUnit:
    """Two convolutions, whose result is added to the rows; the second reads each row alone."""

    def __init__(self, width: int, dilation: int, parts: Parts):
        first = Snake(parts.at("act1"), width)
        second = Snake(parts.at("act2"), width)
        wide = parts.at("conv1.conv")
        narrow = parts.at("conv2.conv")
        self.wide = Activated(first, conv(wide, width, width, N_TAPS, dilation))
        self.narrow = Activated(second, conv(narrow, width, width, 1))

    def start(self) -> tuple[Any, Any]:
        return self.wide.start(), self.narrow.start()

    def run(self, x: Floats, before: tuple[Any, Any]) -> tuple[Floats, tuple[Any, Any]]:
        inner, first = self.wide.run(x, before[0])
        inner, second = self.narrow.run(inner, before[1])
        inner += x
        return inner, (first, second)


class CodecDecoder:
    """The stages, and a table for each code of a frame."""

    def __init__(self, sizes: CodecSizes, parts: Parts):
        self.sizes = sizes
        self.tables = code_tables(sizes, parts.at("quantizer"))
        self.chain = Chain(stages_of(sizes, parts))

    def stream(self) -> "CodecStream":
        return CodecStream(self, self.chain.start())

    def latent(self, codes: Codes) -> Floats:
        """The vectors of each frame's codes, added up."""
        found = np.zeros((len(codes), self.sizes.code_width), np.float32)
        for table, column in zip(self.tables, codes.T, strict=True):
            found += table[column]
        return found


@dataclass(slots=True)
class CodecStream:
    """The sound of one speaker, piece by piece."""

    decoder: CodecDecoder
    kept: list[Any] = field(repr=False)

    def decode(self, codes: Codes) -> Floats:
        """The sound of some more frames, [n, n_codes], within +-1."""
        parts = [self._decode(codes[i : i + MOST_FRAMES]) for i in range(0, len(codes), MOST_FRAMES)]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    def _decode(self, codes: Codes) -> Floats:
        rows, self.kept = self.decoder.chain.run(self.decoder.latent(codes), self.kept)
        return np.clip(rows[:, 0], -1, 1)


def code_tables(sizes: CodecSizes, parts: Parts) -> list[Floats]:
    """By code of a frame, the vectors that it chooses from, through the linear behind them: the first code has its
    own, the others share one."""
    inner = sizes.code_width // 2
    n = sizes.n_entries
    others = [("rvq_rest", i) for i in range(sizes.n_codes - 1)]
    found: list[Floats] = []
    for name, i in [("rvq_first", 0), *others]:
        book = parts.at(f"{name}.vq.layers.{i}._codebook")
        usage = book.get("cluster_usage", n)
        sums = book.get("embedding_sum", n, inner)
        vectors = sums / np.maximum(usage, np.float32(LEAST_USAGE))[:, None]
        projection = parts.get(f"{name}.output_proj.weight", sizes.code_width, inner, 1)
        table = vectors @ projection[:, :, 0].T
        found.append(table.astype(np.float32))
    return found


def stages_of(sizes: CodecSizes, parts: Parts) -> list[SoundStage]:
    latent = sizes.latent_width
    first = parts.at("pre_conv.conv")
    found: list[SoundStage] = [
        conv(first, latent, sizes.code_width, 3),
        Transformer(sizes, parts.at("pre_transformer")),
    ]
    for i, factor in enumerate(sizes.upsampling):
        place = parts.at(f"upsample.{i}")
        wider = Upsampling(place.at("0.conv"), latent, latent, 1, factor)
        found += [wider, NextBlock(latent, place.at("1"))]
    return found + sound_stages(sizes, parts.at("decoder"))


def sound_stages(sizes: CodecSizes, parts: Parts) -> list[SoundStage]:
    """The blocks that make sound."""
    width = sizes.width
    found: list[SoundStage] = [conv(parts.at("0.conv"), width, sizes.latent_width, N_TAPS)]
    for i, rate in enumerate(sizes.rates, start=1):
        found += sound_block(width, rate, parts.at(f"{i}.block"))
        width //= 2
    last = len(sizes.rates) + 1
    snake = Snake(parts.at(f"{last}"), width)
    out = parts.at(f"{last + 1}.conv")
    found.append(Activated(snake, conv(out, 1, width, N_TAPS)))
    return found


def sound_block(width: int, rate: int, parts: Parts) -> list[SoundStage]:
    """Half as many channels, `rate` times as many rows."""
    half = width // 2
    snake = Snake(parts.at("0"), width)
    wider = Upsampling(parts.at("1.conv"), width, half, N_STRIDES, rate)
    units = [ResidualUnit(half, dilation, parts.at(f"{i}")) for i, dilation in enumerate(DILATIONS, start=2)]
    return [Activated(snake, wider), *units]
