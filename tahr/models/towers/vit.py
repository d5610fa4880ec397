"""A vision transformer: patches of an image in, one vector out."""

from collections.abc import Callable
from functools import partial

from tahr.backends.api import Backend, KVShape, KVStore, LayerMemory, StepInputs, Tensor
from tahr.models.config.record import ModelConfig, VisionConfig
from tahr.models.decoder import Decoder, make_rope
from tahr.models.parts.attention import Attention, QkNorm
from tahr.models.parts.mlp import GatedMLP, PlainMLP
from tahr.models.parts.stream import ForwardPass, NormedInput, ResidualStream
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.tower import Part, layer_runs
from tahr.models.parts.weights import Norm, Weights
from tahr.weights.watch import FileWatch

PLACE = "vision"  # prefix of a tower's tensors


class TowerPass(ForwardPass):
    """One in which all layers use the same memory, one after the other."""

    def memory(self, layer: int) -> LayerMemory:
        return LayerMemory(self.step, self.kv, 0)


class TowerLayer(DecoderLayer):
    """A layer that says which type its rows are computed in."""

    def __init__(self, attention: Attention, mlp: PlainMLP | GatedMLP, norms: tuple[Norm, Norm]):
        super().__init__(attention, mlp, norms)
        self.matrix = mlp.down


class VisionTower:
    """Layers of norms, attention in both directions and plain MLPs, and a head that makes one row of an image's."""

    def __init__(self, cfg: VisionConfig, w: Weights, files: FileWatch):
        layers = cfg.layers
        self.config = cfg
        self.files = files
        self.windowed: list[bool] = []
        self.n_joined = 0
        self.width_in = cfg.row_width
        self.width = layers.width
        self.n_longest = max(cfg.n_most_patches, cfg.n_positions)
        self.n_tokens = max(self.n_longest, w.backend.step_defaults.tower_tokens)
        self.memory = KVShape(layers.n_heads, layers.head_dim)
        self.patch = w.linear("patch", layers.width, cfg.row_width, cfg.patch_bias)
        self.positions = None
        if not cfg.resized:
            self.positions = w.matrix("positions.weight", cfg.n_positions, layers.width)
        self.norm = w.norm("norm") if w.has("norm.weight") else None
        self.layers: list[TowerLayer] = []
        for i in range(layers.n_layers):
            place = w.at(f"layers.{i}")
            self.layers.append(vit_layer(layers, i, place))
        self.matrix = self.layers[0].matrix
        self.speed = w.backend.step_defaults.tower_speed
        self.head = ProbeHead(cfg, w) if cfg.head == "probe" else ClassHead(cfg, w)
        self._ropes = {kind.rope: make_rope(layers, kind.rope) for kind in layers.kinds}

    @property
    def parts(self) -> list[Part]:
        """Runs of its layers."""
        layers = self.config.layers
        runs = layer_runs(layers, self.n_tokens, self.speed, self.n_longest)
        return [partial(self._run, each) for each in runs]

    def _run(self, layers: range, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        run = TowerPass(backend, step, kv, self._ropes)
        rows = self._input(layers, backend, step)
        stream = ResidualStream(backend, rows, 1.0)
        last = self.layers[-1]
        for layer in self.layers[layers.start : layers.stop]:
            layer.attention(run, stream)
            if layer is last and self.head.reads_one_row:
                stream.gather_rows(step)
            layer.mlp(run, stream)
        if layers.stop == len(self.layers):
            return self.head(run, stream)
        rows = stream.normed(None)
        backend.store_rows(rows, step)
        return rows

    def _input(self, layers: range, backend: Backend, step: StepInputs) -> Tensor:
        if layers.start:
            return backend.take_rows(step, self.width, meets=self.matrix)
        pixels = backend.take_rows(step, self.width_in, meets=self.matrix)
        rows = backend.linear(pixels, self.patch)
        if self.positions:
            positions = backend.embed_positions(self.positions, step)
            rows = backend.add(rows, positions)
        if self.norm is None:
            return rows
        return self.norm.apply(backend, rows)


def vit_layer(cfg: ModelConfig, layer: int, w: Weights, qk_norm: QkNorm = "") -> TowerLayer:
    return TowerLayer(
        Attention(cfg, layer, w.at("self_attn"), qk_norm),
        PlainMLP(cfg, w.at("mlp")),
        w.pick("input_layernorm", "post_attention_layernorm"),
    )


class ClassHead:
    """The row of the class token, which is the last one, normed and projected."""

    reads_one_row = True

    def __init__(self, cfg: VisionConfig, w: Weights):
        self.norm = w.norm("post_norm")
        self.projection = w.linear("projection", cfg.width_out, cfg.layers.width)

    def __call__(self, run: ForwardPass, stream: ResidualStream) -> Tensor:
        return run.backend.linear(stream.normed(self.norm), self.projection)


class ProbeHead:
    """Attention of a learned query to all rows, and an MLP.

    The query is the bias of a linear whose matrix is zero: every row asks alike, and one of the answers is kept.
    """

    reads_one_row = False

    def __init__(self, cfg: VisionConfig, w: Weights):
        head = w.at("head")
        self.post_norm = w.norm("post_norm")
        self.attention = Attention(cfg.layers, 0, head.at("self_attn"))
        self.norm = head.norm("norm")
        self.mlp = PlainMLP(cfg.layers, head.at("mlp"))

    def __call__(self, run: ForwardPass, stream: ResidualStream) -> Tensor:
        seen = self.attention(run, NormedInput(stream, self.post_norm))
        answer = run.backend.gather_rows(seen, run.step)
        pooled = ResidualStream(run.backend, answer, 1.0)
        normed = NormedInput(pooled, self.norm)
        pooled.add(self.mlp(run, normed))
        return pooled.normed(None)


def with_tower(decoder: Decoder, cfg: ModelConfig, w: Weights) -> Decoder:
    """A model of texts with the tower of its configuration, which adapters do not change."""
    assert cfg.vision, "the configuration has no tower"
    decoder.linears = dict(decoder.linears)
    decoder.tower = VisionTower(cfg.vision, w.at(PLACE).of(cfg.vision.layers), decoder.files)
    return decoder


Build = Callable[[ModelConfig, Weights], Decoder]


def seeing(build: Build) -> Build:
    """A family's `build` with a tower added."""
    return lambda cfg, w: with_tower(build(cfg, w), cfg, w)
