"""Towers of images of one size: CLIP's, cut short, with an MLP of every patch behind it; SigLIP's, with a matrix of
every square of them."""

from collections.abc import Callable
from functools import partial

from tahr.backends.api import Backend, KVShape, KVStore, StepInputs, Tensor
from tahr.models.config.record import ChatVisionConfig, ModelConfig
from tahr.models.decoder import Decoder, make_rope
from tahr.models.parts.stream import ResidualStream
from tahr.models.parts.tower import Part, runs_of_layers
from tahr.models.parts.weights import Weights
from tahr.models.towers.joined import STEP_TOKENS
from tahr.models.towers.vit import PLACE, TowerPass, vit_layer
from tahr.weights.watch import FileWatch


class ProjectingTower:
    """Layers of attention in both directions over patches with learned positions, and a projector to the width of the
    text model."""

    def __init__(self, cfg: ChatVisionConfig, w: Weights):
        layers = cfg.layers
        self.config = cfg
        self.files = FileWatch([])
        self.windowed: list[bool] = []
        self.n_tokens = STEP_TOKENS
        self.width_in = cfg.row_width
        self.width = layers.width
        self.memory = KVShape(layers.n_heads, layers.head_dim)
        self.patch = w.linear("patch", layers.width, cfg.row_width, bias=w.has("patch.bias"))
        self.positions = w.matrix("positions.weight", cfg.n_positions, layers.width)
        self.norm = w.norm("norm") if w.has("norm.weight") else None
        self.layers = [vit_layer(layers, i, w.at(f"layers.{i}")) for i in range(layers.n_layers)]
        self.projector = (SquareProjector if cfg.plain else PatchProjector)(cfg, w)
        self._ropes = {kind.rope: make_rope(layers, kind.rope) for kind in layers.kinds}

    @property
    def parts(self) -> list[Part]:
        """Runs of its layers."""
        layers = self.config.layers
        products = layers.width * (4 * layers.width + 2 * layers.ffn_width + 2 * STEP_TOKENS)
        return [partial(self._run, each) for each in runs_of_layers(layers.n_layers, STEP_TOKENS * products)]

    def _run(self, layers: range, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        run = TowerPass(backend, step, kv, self._ropes)
        rows = backend.take_rows(step, self.width) if layers.start else self._embedded(backend, step)
        stream = ResidualStream(backend, rows, 1.0)
        for layer in self.layers[layers.start : layers.stop]:
            layer.attention(run, stream)
            layer.mlp(run, stream)
        rows = stream.normed(None)
        if layers.stop == len(self.layers):
            rows = self.projector(backend, step, rows)
        backend.store_rows(rows, step)
        return rows

    def _embedded(self, backend: Backend, step: StepInputs) -> Tensor:
        rows = backend.linear(backend.take_rows(step, self.width_in), self.patch)
        rows = backend.add(rows, backend.embed_positions(self.positions, step))
        return self.norm.apply(backend, rows) if self.norm else rows


class SquareProjector:
    """A matrix of the patches of a square side by side, each normed."""

    def __init__(self, cfg: ChatVisionConfig, w: Weights):
        self.n = cfg.n_merged
        self.norm = w.norm("post_norm")
        self.matrix = w.linear("projector", cfg.width_out, self.n * cfg.layers.width)

    def __call__(self, backend: Backend, step: StepInputs, rows: Tensor) -> Tensor:
        return backend.linear(backend.join_rows(self.norm.apply(backend, rows), self.n, step), self.matrix)


class PatchProjector:
    """An MLP of each patch alone; the class token is left behind."""

    def __init__(self, cfg: ChatVisionConfig, w: Weights):
        place = w.at("projector")
        self.act = cfg.activation
        self.up = place.linear("up", cfg.width_out, cfg.layers.width, bias=place.has("up.bias"))
        self.down = place.linear("down", cfg.width_out, cfg.width_out, bias=place.has("down.bias"))

    def __call__(self, backend: Backend, step: StepInputs, rows: Tensor) -> Tensor:
        rows = backend.linear(backend.gather_rows(rows, step), self.up)
        return backend.linear(backend.activate(rows, None, self.act), self.down)


Build = Callable[[ModelConfig, Weights], Decoder]


def with_projecting_tower(build: Build) -> Build:
    """A family's `build`, and the tower of its files, which adapters do not change."""

    def made(cfg: ModelConfig, w: Weights) -> Decoder:
        decoder = build(cfg, w)
        vision = cfg.chat_vision
        if vision and w.has(f"{PLACE}.patch.weight"):
            decoder.linears = dict(decoder.linears)
            decoder.tower = ProjectingTower(vision, w.at(PLACE).of(vision.layers))
            decoder.row_width = cfg.width
        return decoder

    return made
