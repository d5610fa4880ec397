"""Towers that make several rows of an image, each of a square of patches: those of Qwen's vision models."""

from functools import partial
from itertools import pairwise

from tahr.backends.api import Backend, Extras, KVShape, KVStore, StepInputs, Tensor
from tahr.models.config.record import ChatVisionConfig, ModelConfig
from tahr.models.decoder import Decoder, make_rope
from tahr.models.parts.attention import Attention
from tahr.models.parts.mlp import GatedMLP
from tahr.models.parts.stream import ForwardPass, ResidualStream
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.tower import Part, layer_runs
from tahr.models.parts.weights import Weights
from tahr.models.towers.mergers import Merger, RowMerger
from tahr.models.towers.vit import PLACE, TowerLayer, TowerPass, vit_layer
from tahr.weights.watch import FileWatch

STEP_TOKENS = 1 << 12  # patches of a step, unless whoever loads the model says otherwise


class JoiningTower:
    """Layers of attention in both directions, and mergers. What later ones than the first make of states in the midst
    of the layers stands beside its result, one set of numbers after the other."""

    def __init__(self, cfg: ChatVisionConfig, w: Weights, text: Weights, files: FileWatch):
        layers = cfg.layers
        self.config = cfg
        self.files = files
        self.n_tokens = STEP_TOKENS
        self.n_joined = 0
        self.width_in = cfg.row_width
        self.width = layers.width * (1 + len(cfg.deepstack))
        self.memory = KVShape(layers.n_heads, layers.head_dim)
        has_bias = w.has("patch.bias")
        self.patch = w.linear("patch", layers.width, cfg.row_width, has_bias)
        make = gated_layer if cfg.gated else vit_layer
        self.layers: list[TowerLayer] = []
        for i in range(layers.n_layers):
            place = w.at(f"layers.{i}")
            self.layers.append(make(layers, i, place))
        self.matrix = self.layers[0].matrix
        self.speed = w.backend.step_defaults.tower_speed
        self.norm = w.norm("norm") if w.has("norm.weight") else None
        self.merger: Merger | RowMerger
        if cfg.projector == "merged":
            self.merger = RowMerger(cfg, text.at("merger"))
        else:
            self.merger = Merger(cfg, w.at("merger"), joins_first=False)
        self.deepstack: list[Merger] = []
        for i in range(len(cfg.deepstack)):
            place = w.at(f"deepstack.{i}")
            self.deepstack.append(Merger(cfg, place, joins_first=True))
        self._ropes = {kind.rope: make_rope(layers, kind.rope) for kind in layers.kinds}

    @property
    def parts(self) -> list[Part]:
        """Runs of its layers."""
        return [partial(self._run, each) for each in runs_alike(self.config, self.speed)]

    @property
    def windowed(self) -> list[bool]:
        """By part, whether attention ends at the windows of an image."""
        return [self.config.is_windowed(run.start) for run in runs_alike(self.config, self.speed)]

    def _run(self, layers: range, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        """A part. States of the midst are merged in the last one; an earlier part stores them beside its rows."""
        run = TowerPass(backend, step, kv, self._ropes)
        is_last = layers.stop == len(self.layers)
        stream = ResidualStream(backend, self._input(backend, step, layers), 1.0)
        kept: dict[int, Tensor] = {}  # states that a merger of this part reads
        for i in layers:
            self.layers[i].attention(run, stream)
            self.layers[i].mlp(run, stream)
            if i not in self.config.deepstack:
                continue
            at = self.config.deepstack.index(i) + 1
            state = stream.normed(None)
            if is_last:
                kept[at] = state
            else:
                backend.store_rows(state, step, at * self.config.layers.width)

        rows = stream.normed(None)
        if is_last:
            return self._merge(backend, step, rows, kept)
        backend.store_rows(rows, step)
        return rows

    def _merge(self, backend: Backend, step: StepInputs, rows: Tensor, kept: dict[int, Tensor]) -> Tensor:
        """Store what becomes of the last rows and of the states before them, those that were not kept too."""
        merged = self.merger(backend, step, rows)
        backend.store_rows(merged, step)

        width = self.config.layers.width
        for at, merger in enumerate(self.deepstack, 1):
            state = kept.pop(at) if at in kept else self._taken(backend, step, width, at * width)
            more = merger(backend, step, state)
            backend.store_rows(more, step, at * self.config.width_out)
        return merged

    def _input(self, backend: Backend, step: StepInputs, layers: range) -> Tensor:
        if layers.start:
            return self._taken(backend, step, self.config.layers.width)
        pixels = self._taken(backend, step, self.width_in)
        rows = backend.linear(pixels, self.patch)
        if self.norm is None:
            return rows
        return self.norm.apply(backend, rows)

    def _taken(self, backend: Backend, step: StepInputs, width: int, begin: int = 0) -> Tensor:
        return backend.take_rows(step, width, begin, self.matrix)


def gated_layer(cfg: ModelConfig, layer: int, w: Weights) -> TowerLayer:
    attention = Attention(cfg, layer, w.at("self_attn"))
    mlp = GatedMLP(cfg, w.at("mlp"))
    norms = w.pick("input_layernorm", "post_attention_layernorm")
    return TowerLayer(attention, mlp, norms)


class WithRowsBehind(DecoderLayer):
    """A decoder layer behind which numbers of images are added to their rows, those that begin at a column."""

    def __init__(self, layer: DecoderLayer, begin: int):
        self.__dict__ |= layer.__dict__
        self.begin = begin

    def mlp(self, run: ForwardPass, stream: ResidualStream) -> None:
        """Work on each token alone; only steps with images have more to add."""
        super().mlp(run, stream)
        if run.step.limits.extras & Extras.ROWS:
            stream.rows = run.backend.with_rows(stream.normed(None), run.step, add=True, begin=self.begin)


def runs_alike(cfg: ChatVisionConfig, speed: int, n_tokens: int = STEP_TOKENS) -> list[range]:
    """Layers by part: no more than a part's work, and windowed ones apart from the others."""
    found: list[range] = []
    for run in layer_runs(cfg.layers, n_tokens, speed):
        changes = [i for i in run[1:] if cfg.is_windowed(i) != cfg.is_windowed(i - 1)]
        ends = [run.start, *changes, run.stop]
        found += [range(first, last) for first, last in pairwise(ends)]
    return found


def with_joining_tower(decoder: Decoder, cfg: ModelConfig, w: Weights) -> Decoder:
    """A text model with the tower of its configuration, which adapters do not change; as it is where the files have
    none."""
    vision = cfg.chat_vision
    if vision is None or not w.has(f"{PLACE}.patch.weight"):
        return decoder
    place = w.at(PLACE)
    decoder.linears = dict(decoder.linears)
    decoder.tower = JoiningTower(vision, place.of(vision.layers), place, decoder.files)
    n_fed = len(vision.deepstack)
    decoder.row_width = cfg.width * (1 + n_fed)
    layers = list(decoder.layers)
    for i in range(n_fed):
        begin = (i + 1) * cfg.width
        layers[i] = WithRowsBehind(layers[i], begin)
    decoder.layers = layers
    return decoder
