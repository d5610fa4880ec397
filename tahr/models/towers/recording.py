"""The encoder of recordings: convolutions over frames, layers that see all rows, and keys and values for a decoder.

A row is made of two frames. The first convolution is a linear of the frames around it, which the host lays side by
side (`tahr/speech/audio/rows.py`); it gives what the second one reads: the rows of three frames in a line.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tahr.backends.api import Backend, KVShape, KVStore, StepInputs, Tensor
from tahr.models.config.record import AudioConfig, ModelConfig
from tahr.models.decoder import make_rope
from tahr.models.encoders.layers import of_floats
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.cross_attention import CrossAttention
from tahr.models.parts.makers import Make
from tahr.models.parts.stream import ResidualStream
from tahr.models.parts.tower import Part, layer_runs
from tahr.models.parts.weights import Weights
from tahr.models.towers.arranging import mismatch
from tahr.models.towers.vit import TowerPass, vit_layer
from tahr.weights.tensor import HostTensor
from tahr.weights.watch import FileWatch

N_SIDE = 5  # frames of an input row: that of the middle and two on either side
TAPS = 3
ABSENT = -1e4  # the activation of such a number is 0


class RecordingEncoder:
    """See `Tower`. The last part stores keys and values in the decoder's memory; its rows go nowhere else."""

    def __init__(self, cfg: AudioConfig, w: Weights, crossed: Sequence[CrossAttention], files: FileWatch):
        layers = cfg.layers
        plain = w.of(layers)  # convolutions and positions are few, and stay as they are
        self.config = cfg
        self.files = files
        self.windowed: list[bool] = []
        self.n_joined = 0
        self.width_in = input_width(cfg)
        self.width = layers.width
        self.n_tokens = cfg.n_rows  # one recording at a time: its rows keep all threads busy
        self.memory = KVShape(layers.n_heads, layers.head_dim)
        self.frames = plain.linear("frames", TAPS * layers.width, self.width_in, bias=True)
        self.pairs = plain.linear("pairs", layers.width, TAPS * layers.width, bias=True)
        self.positions = plain.matrix("positions.weight", cfg.n_rows, layers.width)
        self.layers = [vit_layer(layers, i, w.at(f"layers.{i}")) for i in range(layers.n_layers)]
        self.matrix = self.layers[0].matrix
        self.speed = w.backend.step_defaults.tower_speed
        self.norm = plain.norm("norm")
        self.crossed = crossed
        self._rope = layers.kinds[0].rope
        self._ropes = {self._rope: make_rope(layers, self._rope)}

    @property
    def parts(self) -> list[Part]:
        """Runs of its layers."""
        runs = layer_runs(self.config.layers, self.n_tokens, self.speed)
        return [partial(self._run, each) for each in runs]

    def _run(self, layers: range, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        run = TowerPass(backend, step, kv, self._ropes)
        rows = self._input(layers, backend, step)
        stream = ResidualStream(backend, rows, 1.0)
        for layer in self.layers[layers.start : layers.stop]:
            layer.attention(run, stream)
            layer.mlp(run, stream)
        if layers.stop < len(self.layers):
            rows = stream.normed(None)
            backend.store_rows(rows, step)
            return rows
        rows = stream.normed(self.norm)
        for each in self.crossed:
            each.store(backend, rows, run.cos_sin(self._rope), step)
        return rows

    def _input(self, layers: range, backend: Backend, step: StepInputs) -> Tensor:
        if layers.start:
            return backend.take_rows(step, self.width, meets=self.matrix)
        rows = backend.take_rows(step, self.width_in, meets=self.matrix)
        for linear in (self.frames, self.pairs):
            rows = backend.linear(rows, linear)
            rows = backend.activate(rows, None, self.config.layers.activation)
        positions = backend.embed_positions(self.positions, step)
        return backend.add(rows, positions)


def input_width(cfg: AudioConfig) -> int:
    """Numbers of an input row: its frames, and whether the first of three outputs is beyond the recording."""
    return N_SIDE * cfg.n_bins + 1


def arrange_convolutions(cfg: AudioConfig, tensors: Tensors) -> None:
    """Let both convolutions be linears."""
    width = cfg.layers.width
    first = (width, cfg.n_bins, TAPS)
    bias = tensors.take("audio.conv1.bias")
    tensors.define("audio.frames.weight", frames_of(tensors.take("audio.conv1.weight"), first))
    tensors.define("audio.frames.bias", lambda: of_floats("audio.conv1.bias", np.tile(bias().dense(), TAPS)))
    tensors.define("audio.pairs.weight", pairs_of(tensors.take("audio.conv2.weight"), (width, width, TAPS)))
    tensors.define("audio.pairs.bias", tensors.take("audio.conv2.bias"))


def frames_of(stored: Make, shape: tuple[int, int, int]) -> Make:
    """[3 * width, N_SIDE * n_bins + 1]: output i of three reads frames i, i + 1 and i + 2 of five."""

    def make() -> HostTensor:
        kernel = checked(stored(), shape)
        width, n_bins, _ = shape
        matrix = np.zeros((TAPS, width, N_SIDE * n_bins + 1), np.float32)
        for i in range(TAPS):
            begin = i * n_bins
            end = begin + TAPS * n_bins
            matrix[i, :, begin:end] = kernel.transpose(0, 2, 1).reshape(width, -1)
        matrix[0, :, -1] = ABSENT
        return of_floats("audio.conv1.weight", matrix.reshape(TAPS * width, -1))

    return make


def pairs_of(stored: Make, shape: tuple[int, int, int]) -> Make:
    """[width, 3 * width]."""

    def make() -> HostTensor:
        kernel = checked(stored(), shape)
        return of_floats("audio.conv2.weight", kernel.transpose(0, 2, 1).reshape(shape[0], -1))

    return make


def checked(tensor: HostTensor, shape: tuple[int, int, int]) -> np.ndarray:
    if tensor.shape != shape:
        raise mismatch(tensor, shape)
    return tensor.dense().reshape(shape)


def encoder_config(cfg: ModelConfig, n_bins: int, n_rows: int) -> AudioConfig:
    """`cfg` of an encoder's layers, in which every row sees all others."""
    return AudioConfig(replace(cfg, bidirectional=True), n_bins, n_rows)
