"""EAGLE-3: a layer or a few that guess a token from the one before it and from what a model's layers made of the text.

Entry p of a text stands for its token p + 1, read together with the row of token p, and guesses token p + 2. That row
is what chosen layers of the model were given, side by side, which one linear makes as wide as the drafter; behind the
last token that the model has computed it is what the drafter made of the entry before.
"""

from collections.abc import Sequence
from itertools import pairwise

from tahr.backends.api import Backend, KVStore, Linear, StepInputs, Tensor
from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder, make_rope
from tahr.models.drafters.reading import DrafterConfig
from tahr.models.parts.attention import Attention, QkNorm
from tahr.models.parts.mlp import GatedMLP
from tahr.models.parts.stream import ForwardPass, NormedInput, ResidualStream
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.weights import Norm, Weights
from tahr.weights.watch import FileWatch

TABLE = "model.embed_tokens.weight"


class Drafter:
    """Steps of a drafter: they read a row for each token, and store the row of the next entry."""

    def __init__(self, cfg: DrafterConfig, w: Weights, target: Decoder):
        layers = cfg.layers
        self.config = layers
        self.kind = cfg
        self.row_width = max(cfg.n_taps * cfg.target_width, layers.width)
        self.ropes = {kind.rope: make_rope(layers, kind.rope) for kind in layers.kinds}
        self.table = w.matrix(TABLE, layers.n_vocab, layers.width) if w.has(TABLE) else target.table
        own = [w.tensors[TABLE].source] if w.has(TABLE) and w.backend.maps_tables else []
        self.files = FileWatch(own)
        n_read = cfg.n_taps * cfg.target_width
        self.fc = w.linear("fc", layers.width, n_read)
        self.row_norm = w.norm("input_norm", n_read) if cfg.norm_before_fc else None
        norms = [w.norm(f"fc_norm.{i}", cfg.target_width) for i in range(cfg.n_taps)] if cfg.norm_each else []
        self.each_norm: list[Norm] = norms
        first = w.at("layers.0")
        self.embed_norm = first.norm("input_layernorm")
        self.hidden_norm = first.norm("hidden_norm")
        self.layers = [make_layer(layers, w.at(f"layers.{i}"), i) for i in range(layers.n_layers)]
        self.memory = tuple(layer.memory for layer in self.layers)
        self.norm = w.norm("norm")
        self.head = make_head(cfg, w, target)

    @property
    def windows(self) -> Sequence[int]:
        """How much of a text every layer of `memory` has to remember; 0: all of it."""
        return self.config.windows

    def follow(self, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        """The logits of `step.logit_rows`; every token has a row of the model's layers."""
        rows = backend.take_rows(step, self.fc.weight.n_cols, meets=self.fc)
        if self.row_norm:
            rows = self.row_norm.apply(backend, rows)
        if self.each_norm:
            rows = self._normed_each(backend, rows)
        return self._run(backend, step, kv, backend.linear(rows, self.fc))

    def chain(self, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        """The logits of `step.logit_rows`; every token has a row that the drafter has made."""
        return self._run(backend, step, kv, backend.take_rows(step, self.config.width, meets=self.fc))

    def _normed_each(self, backend: Backend, rows: Tensor) -> Tensor:
        width = self.kind.target_width
        normed = [norm.apply(backend, backend.columns(rows, i * width, width)) for i, norm in enumerate(self.each_norm)]
        joined = normed[0]
        for part in normed[1:]:
            joined = backend.join_heads(joined, part, 1)
        return joined

    def _run(self, backend: Backend, step: StepInputs, kv: KVStore, hidden: Tensor) -> Tensor:
        run = ForwardPass(backend, step, kv, self.ropes)
        embedded = self.embed_norm.apply(backend, backend.embed(self.table, step))
        normed = self.hidden_norm.apply(backend, hidden)
        pair = ResidualStream(backend, backend.join_heads(embedded, normed, 1), 1.0)
        stream = ResidualStream(backend, normed if self.kind.norm_before_residual else hidden, 1.0)
        stream.add(self.layers[0].sublayers[0](run, NormedInput(pair, None)))
        for layer, after in pairwise(self.layers):
            layer.mlp(run, stream)
            after.attention(run, stream)
        stream.gather_rows(step)
        self.layers[-1].mlp(run, stream)
        out = stream.normed(self.norm)
        backend.store_rows(out if self.kind.norm_output else stream.rows, step)
        return backend.linear(out, self.head)


def make_layer(cfg: ModelConfig, w: Weights, i: int) -> DecoderLayer:
    """Layer i. The first one reads the embedding and the hidden row side by side, each through a norm of its own."""
    qk_norm: QkNorm = "heads" if cfg.family == "qwen3" else ""
    attention = Attention(cfg, i, w.at("self_attn"), qk_norm, width_in=0 if i else 2 * cfg.width)
    before = w.norm("input_layernorm") if i else None
    return DecoderLayer(attention, GatedMLP(cfg, w.at("mlp")), (before, w.norm("post_attention_layernorm")))


def make_head(cfg: DrafterConfig, w: Weights, target: Decoder) -> Linear:
    """Its own head, or the model's where it may guess every token and has none."""
    shares = cfg.n_draft_vocab == target.config.n_vocab and cfg.layers.width == target.config.width
    if shares and target.head and not w.has("lm_head.weight"):
        return target.head
    return w.linear("lm_head", cfg.n_draft_vocab, cfg.layers.width)
