"""The talker: Qwen3 layers whose tokens are text and sound at once.

A token is a token of text, through an MLP, and the codes of a frame; both are added up. Behind the text to be said, the
token of text is padding, and the frames are those that were drawn.
"""

from dataclasses import replace

import numpy as np

from tahr.backends.api import Backend, Extras, KVStore, StepInputs, Tensor
from tahr.models.config.record import ModelConfig, SpeechConfig
from tahr.models.decoder import Decoder
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.makers import Make, check_axes, check_rows
from tahr.models.parts.weights import Weights
from tahr.models.speaking.predictor import CodePredictor, predictor_layer
from tahr.weights.tensor import HostTensor


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    assert cfg.speech, "the configuration has no codes"
    w.backend.check_frames()
    return Talker(cfg, cfg.speech, w)


class FrameEmbedding:
    """Text and codes as one row, and rows from elsewhere where a step has them."""

    def __init__(self, cfg: ModelConfig, speech: SpeechConfig, w: Weights):
        self.table = w.matrix("model.embed_tokens.weight", cfg.n_vocab, speech.text_width)
        self.up = w.linear("text.up", speech.text_width, speech.text_width, bias=True)
        self.down = w.linear("text.down", cfg.width, speech.text_width, bias=True)
        heights = [speech.n_first + 1, *[speech.n_entries + 1] * (speech.n_codes - 1)]
        self.codes = [w.matrix(f"codes.{i}.weight", n, cfg.width) for i, n in enumerate(heights)]

    def __call__(self, backend: Backend, step: StepInputs) -> Tensor:
        b = backend
        assert step.frames, "a talker's steps have codes"
        inner = b.activate(b.linear(b.embed(self.table, step), self.up), None, "silu")
        rows = b.linear(inner, self.down)
        for table, ids in zip(self.codes, step.frames.codes, strict=True):
            rows = b.add(rows, b.embed(table, replace(step, ids=ids)))
        return b.with_rows(rows, step, add=True) if step.limits.extras & Extras.ROWS else rows


class Talker(Decoder):
    """A decoder whose steps draw frames."""

    def __init__(self, cfg: ModelConfig, speech: SpeechConfig, w: Weights):
        embedding = FrameEmbedding(cfg, speech, w)
        layers = [predictor_layer(cfg, i, w.at(f"model.layers.{i}")) for i in range(cfg.n_layers)]
        super().__init__(cfg, w, layers, embedding)
        self.frame_codes = speech.n_codes
        self.predictor = CodePredictor(speech, cfg.width, embedding.codes, w.at("predictor"))
        self.inner_memory = self.predictor.memory
        for name in w.tensors:
            if name.startswith("speaker_encoder."):
                w.skip(name)  # read where a voice is: `loading/sound/speaking.py`

    def draw(self, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        """Draw a frame after each of `step.logit_rows`; the codes are in `step.frames`."""
        assert step.frames, "a talker's steps have codes"
        states = self.hidden(backend, step, kv)
        backend.choose(self.logits(backend, states), step.frames.draws[0])
        self.predictor.draw(backend, states, step.frames)
        return states


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    """The head ends with the sounds, behind which stands the end; tables of codes end with a row of zeros."""
    speech = cfg.speech
    assert speech, "the configuration has no codes"
    tensors.define("lm_head.weight", sounds_and_end(tensors.take("lm_head.weight"), speech))
    first = tensors.take("model.codec_embedding.weight")
    tensors.define("codes.0.weight", with_zeros(first, speech.n_first))
    for i in range(1, speech.n_codes):
        stored = tensors.take(f"predictor.codec_embedding.{i - 1}.weight")
        tensors.define(f"codes.{i}.weight", with_zeros(stored, speech.n_entries))
    return tensors


def sounds_and_end(stored: Make, speech: SpeechConfig) -> Make:
    def make() -> HostTensor:
        tensor = stored()
        size = row_bytes(tensor, speech.n_first)
        end = speech.end * size
        data = np.concatenate([tensor.data[: speech.n_sounds * size], tensor.data[end : end + size]])
        return HostTensor(tensor.name, tensor.format, (speech.n_sounds + 1, *tensor.shape[1:]), data)

    return make


def with_zeros(stored: Make, n_rows: int) -> Make:
    def make() -> HostTensor:
        tensor = stored()
        zeros = tensor.data[: row_bytes(tensor, n_rows)] * np.uint8(
            0
        )  # zeros of a tensor that is not read are not made
        data = np.concatenate([tensor.data, zeros])
        return HostTensor(tensor.name, tensor.format, (n_rows + 1, *tensor.shape[1:]), data)

    return make


def row_bytes(tensor: HostTensor, n_rows: int) -> int:
    check_axes(tensor, 2)
    check_rows(tensor, tensor.shape[0], n_rows)
    return tensor.n_bytes // n_rows
