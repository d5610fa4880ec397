"""The forward pass every family shares."""

from collections.abc import Callable, Mapping, Sequence

from tahr.backends.api import (
    Backend,
    Extras,
    Floats,
    KVStore,
    LayerShape,
    Linear,
    LinearShape,
    LoraFactors,
    Rope,
    StepInputs,
    Tensor,
)
from tahr.models.config.record import ModelConfig
from tahr.models.config.rope import RopeConfig
from tahr.models.parts.embedding import InputEmbedding, TokenEmbedding
from tahr.models.parts.encoding import Encoding
from tahr.models.parts.stages import Carried, check_stage
from tahr.models.parts.stream import ForwardPass, ResidualStream
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.text_head import TextHead
from tahr.models.parts.tower import Tower
from tahr.models.parts.weights import Weights
from tahr.weights.watch import FileWatch

Forward = Callable[[Backend, StepInputs, KVStore], Tensor]
# Tables that may be read row by row where they lie in the file.
TABLES = tuple(f"model.{name}.weight" for name in ("embed_tokens", "embed_positions", "embed_tokens_per_layer"))


class Decoder:
    """Token ids in, logits out: an embedding, layers on a residual stream, a norm, a head."""

    frame_codes = 0  # codes that a step draws after a token; 0: it gives logits

    def __init__(
        self,
        cfg: ModelConfig,
        w: Weights,
        layers: Sequence[DecoderLayer],
        embedding: InputEmbedding | None = None,  # None: of tokens
    ):
        self.config = cfg
        self.layers = layers
        self.memory = tuple(layer.memory for layer in layers)
        self.row_width = cfg.width  # numbers of a row that stands in place of an embedding
        self.ropes = {kind.rope: make_rope(cfg, kind.rope) for kind in cfg.kinds}
        self.norm = w.norm("model.norm") if cfg.final_norm else None
        self.embedding = embedding or TokenEmbedding(cfg, w)
        self.table = self.embedding.table
        # Tables that steps go on reading in the model's files.
        paged = [w.tensors[name].source for name, home in w.homes.items() if home.how == "paged" and w.has(name)]
        tables = [w.tensors[name].source for name in TABLES if w.backend.maps_tables and w.has(name)]
        self.files = FileWatch([*tables, *paged])
        self.linears = w.counts.linears  # shapes of those that adapters may change
        self.encoding: Encoding | None = None  # the way from whole texts to vectors; None: the model generates
        self.text_head: TextHead | None = None
        self.inner_memory: tuple[LayerShape, ...] = ()  # memory of layers that run inside a step, for one frame
        self.tower: Tower | None = None  # makes rows or vectors of images
        self.line_end: Floats | None = None  # row behind each line of an image's tiles, where a family has one
        self.head: Linear | None = None
        if cfg.bidirectional or not cfg.generates:
            w.skip("lm_head.weight")
            return
        if cfg.tied:
            w.skip("lm_head.weight")
            self.head = Linear(self.table, name="lm_head")
            self.linears["lm_head"] = LinearShape(cfg.n_vocab, cfg.width, self.table.kernel)
        else:
            self.head = w.linear("lm_head", cfg.n_head_rows or cfg.n_vocab, cfg.width, bias=w.has("lm_head.bias"))

    @property
    def windows(self) -> Sequence[int]:
        """How much of a text every layer of `memory` has to remember; 0: all of it."""
        return self.config.windows

    @property
    def targets(self) -> Mapping[str, LinearShape]:
        """Shapes of the linears that adapters name."""
        return self.linears

    def factors_of(self, factors: Mapping[str, LoraFactors]) -> Mapping[str, LoraFactors]:
        """An adapter's factors by the names of `linears`, given by those of `targets`."""
        return factors

    @property
    def has_axes(self) -> bool:
        """Whether rope turns tokens by positions of several axes, where steps give them."""
        return any(rope.axes for rope in self.ropes.values())

    def forward(self, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        """The logits of `step.logit_rows`."""
        return self.logits(backend, self.hidden(backend, step, kv))

    def tapped(self, taps: Sequence[int]) -> Forward:
        """`forward` that stores the input of some layers in row slots, side by side, where a step names these."""

        def forward(backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
            stored = taps if step.limits.extras & Extras.TARGETS else ()
            return self.logits(backend, self.stage(backend, step, kv, range(len(self.layers)), taps=stored).rows)

        return forward

    def draw(self, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        """Draw a frame after each of `step.logit_rows`: of models that have `frame_codes`."""
        raise NotImplementedError

    def logits(self, backend: Backend, hidden: Tensor) -> Tensor:
        """The logits of hidden rows."""
        assert self.head, "an encoder has no logits"
        logits = backend.linear(hidden, self.head)
        if self.config.logit_scale != 1:
            logits = backend.scale(logits, self.config.logit_scale)
        return backend.softcap(logits, self.config.logit_softcap) if self.config.logit_softcap else logits

    def prepare(self, run: ForwardPass, embedded: Tensor) -> None:
        """Compute what layers read besides the stream, if anything."""

    def hidden(self, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        """The states of `step.logit_rows` after the final norm."""
        return self.stage(backend, step, kv, range(len(self.layers))).rows

    def stage(
        self,
        backend: Backend,
        step: StepInputs,
        kv: KVStore,
        layers: range,
        carried: Carried | None = None,
        taps: Sequence[int] = (),
    ) -> Carried:
        """Run a range of layers on what the stage before handed on, or on the embedding.

        The stage with the last layer applies the final norm to the rows of `step.logit_rows`. `kv` holds the memory of
        these layers alone, in their order.
        """
        check_stage(self.config, layers)
        assert (carried is None) == (layers.start == 0), "a stage reads what the one before it handed on"
        run = ForwardPass(backend, step, kv, self.ropes, first_layer=layers.start)
        stream = self._stream(run, carried)
        has_last = layers.stop == len(self.layers)
        for i in layers[:-1] if has_last else layers:
            self._store(run, stream, i, taps)
            self.layers[i].attention(run, stream)
            self.layers[i].mlp(run, stream)
        if not has_last:
            return Carried(stream.normed(None), run.per_layer)
        self._store(run, stream, layers[-1], taps)
        # Nobody reads what the last layer makes of the other rows once their keys are stored.
        self.layers[-1].attention(run, stream)
        stream.gather_rows(step)
        self.layers[-1].mlp(run, stream)
        return Carried(stream.normed(self.norm))

    def _store(self, run: ForwardPass, stream: ResidualStream, layer: int, taps: Sequence[int]) -> None:
        """Store what a layer is given, where that is wanted. The stream stays as it is, and so does every bit."""
        if layer in taps:
            run.backend.store_rows(stream.summed(), run.step, taps.index(layer) * self.config.width)

    def _stream(self, run: ForwardPass, carried: Carried | None) -> ResidualStream:
        """The input of a stage's first layer. The stream alone keeps it: its memory is free after one addition."""
        if carried:
            run.per_layer = carried.per_layer
            rows = carried.rows
        else:
            rows = self.embedding(run.backend, run.step)
            self.prepare(run, rows)
        return ResidualStream(run.backend, rows, self.config.residual_scale)


def decoder_of(cfg: ModelConfig, w: Weights, layer: Callable[[int, Weights], DecoderLayer]) -> Decoder:
    """A decoder whose layers are made of their numbers and their weights."""
    return Decoder(cfg, w, [layer(i, w.at(f"model.layers.{i}")) for i in range(cfg.n_layers)])


def make_rope(cfg: ModelConfig, rope: RopeConfig) -> Rope:
    frequencies, scale = rope.frequencies()
    return Rope(frequencies, cfg.rope_style, scale, rope.axes)
