"""Towers of images of one size: CLIP's, cut short, with an MLP of every patch behind it; SigLIP's, with a matrix of
every square of them, or of the mean of these."""

from collections.abc import Callable
from functools import partial

from tahr.backends.api import Backend, KVShape, KVStore, StepInputs, Tensor
from tahr.models.config.record import ChatVisionConfig, ModelConfig
from tahr.models.decoder import Decoder, make_rope
from tahr.models.parts.attention import QkNorm
from tahr.models.parts.stream import ResidualStream
from tahr.models.parts.tower import Part, layer_runs
from tahr.models.parts.weights import Norm, Weights
from tahr.models.towers.joined import STEP_TOKENS
from tahr.models.towers.vit import PLACE, TowerPass, vit_layer
from tahr.weights.watch import FileWatch

JOINED_EPS = 1e-5  # epsilon of the norm behind joined patches


class ProjectingTower:
    """Layers of attention in both directions over patches with learned positions, and a projector to the width of the
    text model."""

    def __init__(self, cfg: ChatVisionConfig, w: Weights, files: FileWatch):
        layers = cfg.layers
        self.config = cfg
        self.files = files
        self.windowed: list[bool] = []
        self.n_tokens = STEP_TOKENS
        self.width_in = cfg.row_width
        self.width = layers.width
        self.memory = KVShape(layers.n_heads, layers.head_dim)
        self.patch = w.linear(
            "patch",
            layers.width,
            cfg.row_width,
            bias=w.has("patch.bias"),
        )
        self.positions = w.matrix("positions.weight", cfg.n_positions, layers.width)
        self.norm = w.norm("norm") if w.has("norm.weight") else None
        qk_norm: QkNorm = "rows" if cfg.row_norms else ""
        self.layers = [vit_layer(layers, i, w.at(f"layers.{i}"), qk_norm) for i in range(layers.n_layers)]
        self.matrix = self.layers[0].matrix
        self.speed = w.backend.step_defaults.tower_speed
        # A class token among the patches is no neighbour of any: it is left behind before these are joined.
        self.n_joined = cfg.n_merged if cfg.has_class and cfg.merge > 1 else 0
        self.projector = PROJECTORS[cfg.projector](cfg, w)
        self._ropes = {kind.rope: make_rope(layers, kind.rope) for kind in layers.kinds}

    @property
    def parts(self) -> list[Part]:
        """Runs of its layers, and the projector where it reads other rows than they."""
        runs = layer_runs(self.config.layers, self.n_tokens, self.speed)
        made: list[Part] = [partial(self._run, each) for each in runs]
        return [*made, self._project] if self.n_joined else made

    def _project(self, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        rows = backend.take_rows(step, self.width, meets=self.matrix)
        rows = self.projector(backend, step, rows)
        backend.store_rows(rows, step)
        return rows

    def _run(self, layers: range, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        run = TowerPass(backend, step, kv, self._ropes)
        rows = self._input(layers, backend, step)
        stream = ResidualStream(backend, rows, 1.0)
        for layer in self.layers[layers.start : layers.stop]:
            layer.attention(run, stream)
            layer.mlp(run, stream)
        rows = stream.normed(None)
        if layers.stop == len(self.layers) and not self.n_joined:
            rows = self.projector(backend, step, rows)
        backend.store_rows(rows, step)
        return rows

    def _input(self, layers: range, backend: Backend, step: StepInputs) -> Tensor:
        if layers.start:
            return backend.take_rows(step, self.width, meets=self.matrix)
        pixels = backend.take_rows(step, self.width_in, meets=self.matrix)
        rows = backend.linear(pixels, self.patch)
        positions = backend.embed_positions(self.positions, step)
        rows = backend.add(rows, positions)
        if self.norm is None:
            return rows
        return self.norm.apply(backend, rows)


class SquareProjector:
    """A matrix of the patches of a square side by side, each normed."""

    def __init__(self, cfg: ChatVisionConfig, w: Weights):
        self.n = cfg.n_merged
        self.norm = w.norm("post_norm")
        self.matrix = w.linear("projector", cfg.width_out, self.n * cfg.layers.width)

    def __call__(self, backend: Backend, step: StepInputs, rows: Tensor) -> Tensor:
        rows = self.norm.apply(backend, rows)
        rows = backend.join_rows(rows, self.n, step)
        return backend.linear(rows, self.matrix)


class PatchProjector:
    """An MLP of each patch alone; the class token is left behind."""

    def __init__(self, cfg: ChatVisionConfig, w: Weights):
        w = w.at("projector")
        self.act = cfg.activation
        self.up = w.linear(
            "up",
            cfg.width_out,
            cfg.layers.width,
            bias=w.has("up.bias"),
        )
        self.down = w.linear(
            "down",
            cfg.width_out,
            cfg.width_out,
            bias=w.has("down.bias"),
        )

    def __call__(self, backend: Backend, step: StepInputs, rows: Tensor) -> Tensor:
        rows = backend.gather_rows(rows, step)
        rows = backend.linear(rows, self.up)
        rows = backend.activate(rows, None, self.act)
        return backend.linear(rows, self.down)


class JoinedProjector:
    """A layer norm of the patches of a square side by side, and an MLP of them."""

    def __init__(self, cfg: ChatVisionConfig, w: Weights):
        w = w.at("projector")
        width = cfg.n_merged * cfg.layers.width
        self.n = cfg.n_merged
        self.act = cfg.activation
        self.norm = Norm(w.vector("norm.weight", width), JOINED_EPS, centred=True, bias=w.vector("norm.bias", width))
        self.up = w.linear("up", cfg.width_out, width, bias=True)
        self.down = w.linear("down", cfg.width_out, cfg.width_out, bias=True)

    def __call__(self, backend: Backend, step: StepInputs, rows: Tensor) -> Tensor:
        rows = self.norm.apply(backend, backend.join_rows(rows, self.n, step))
        rows = backend.activate(backend.linear(rows, self.up), None, self.act)
        return backend.linear(rows, self.down)


class MeanProjector:
    """The mean of the patches of a square, each normed; then a norm without a bias, and a matrix."""

    def __init__(self, cfg: ChatVisionConfig, w: Weights):
        self.n = cfg.n_merged
        self.norm = w.norm("post_norm")
        self.gain = w.vector("mean_norm.weight", cfg.layers.width)
        self.eps = cfg.layers.norm_eps
        self.matrix = w.linear("projector", cfg.width_out, cfg.layers.width)

    def __call__(self, backend: Backend, step: StepInputs, rows: Tensor) -> Tensor:
        width = rows.width
        rows = self.norm.apply(backend, rows)
        squares = backend.join_rows(rows, self.n, step)
        total = backend.columns(squares, 0, width)
        for i in range(1, self.n):
            total = backend.add(total, backend.columns(squares, i * width, width))
        mean = backend.scale(total, 1 / self.n)
        return backend.linear(backend.rms_norm(mean, self.gain, self.eps), self.matrix)


Projector = Callable[[Backend, StepInputs, Tensor], Tensor]
PROJECTORS: dict[str, Callable[[ChatVisionConfig, Weights], Projector]] = {
    "mlp": PatchProjector,
    "square": SquareProjector,
    "mean": MeanProjector,
    "joined": JoinedProjector,
}
Build = Callable[[ModelConfig, Weights], Decoder]


def with_projecting_tower(build: Build) -> Build:
    """A family's `build`, and the tower of its files, which adapters do not change."""

    def made(cfg: ModelConfig, w: Weights) -> Decoder:
        decoder = build(cfg, w)
        vision = cfg.chat_vision
        if vision and w.has(f"{PLACE}.patch.weight"):
            decoder.linears = dict(decoder.linears)
            decoder.tower = ProjectingTower(vision, w.at(PLACE).of(vision.layers), decoder.files)
            decoder.row_width = cfg.width
            if vision.place.tiles == "lines":
                decoder.line_end = w.at(PLACE).find("line_end", (cfg.width,)).dense()
        return decoder

    return made
