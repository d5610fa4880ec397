"""The code predictor: of a frame it knows the state of the talker and the first code, and draws the others in turn.

It is a decoder of a few layers, for which each frame is a text of its own: position 0 is the state, position i the code
before it. Code i has an embedding and a head of its own.
"""

from collections.abc import Sequence
from dataclasses import replace

from tahr.backends.api import Backend, FrameInputs, Linear, StepInputs, Tensor, Weight
from tahr.models.config.record import ModelConfig, SpeechConfig
from tahr.models.decoder import make_rope
from tahr.models.parts.attention import Attention
from tahr.models.parts.mlp import GatedMLP
from tahr.models.parts.stream import ForwardPass, ResidualStream
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.weights import Weights


class CodePredictor:
    """Runs inside a step of the talker, a token of each row at a time."""

    def __init__(self, cfg: SpeechConfig, width: int, tables: Sequence[Weight], w: Weights):
        layers = cfg.predictor
        at = w.numbered(layers)
        self.tables = tables  # tables by code of a frame, the last one too
        self.layers = [predictor_layer(layers, i, at.at(f"layers.{i}")) for i in range(layers.n_layers)]
        self.memory = tuple(layer.memory for layer in self.layers)
        self.norm = at.norm("norm")
        self.heads = [at.linear(f"heads.{i}", layers.n_vocab, layers.width) for i in range(cfg.n_codes - 1)]
        self.into: Linear | None = None
        if layers.width != width:
            self.into = at.linear("projection", layers.width, width, bias=True)
        self._ropes = {kind.rope: make_rope(layers, kind.rope) for kind in layers.kinds}

    def draw(self, b: Backend, states: Tensor, frames: FrameInputs) -> None:
        """Draw all codes but the first, which is drawn already."""
        self._states(b, states, frames, frames.steps[0])
        for i, head in enumerate(self.heads, start=1):
            step = frames.steps[i]
            rows = b.embed(self.tables[i - 1], replace(step, ids=frames.draws[i - 1].ids))
            b.choose(b.linear(self._states(b, rows, frames, step), head), frames.draws[i])

    def _states(self, b: Backend, rows: Tensor, frames: FrameInputs, step: StepInputs) -> Tensor:
        run = ForwardPass(b, step, frames.kv, self._ropes)
        stream = ResidualStream(b, b.linear(rows, self.into) if self.into else rows, 1.0)
        for layer in self.layers:
            layer.attention(run, stream)
            layer.mlp(run, stream)
        return stream.normed(self.norm)


def predictor_layer(cfg: ModelConfig, i: int, w: Weights) -> DecoderLayer:
    return DecoderLayer(
        attention=Attention(cfg, i, w.at("self_attn"), qk_norm="heads"),
        ffn=GatedMLP(cfg, w.at("mlp")),
        norms=w.pick("input_layernorm", "post_attention_layernorm"),
    )
