"""Mergers: what makes one row of a square of patches."""

from tahr.backends.api import Backend, StepInputs, Tensor
from tahr.models.config.record import ChatVisionConfig
from tahr.models.parts.weights import Weights


class Merger:
    """An MLP of a square of patches side by side, normed before they are joined or after."""

    def __init__(self, cfg: ChatVisionConfig, w: Weights, joins_first: bool):
        joined = cfg.n_merged * cfg.layers.width
        self.n = cfg.n_merged
        self.joins_first = joins_first
        self.norm = w.norm("norm", joined if joins_first else None)
        self.up = w.linear("up", joined, joined, bias=True)
        self.down = w.linear("down", cfg.width_out, joined, bias=True)

    def __call__(self, backend: Backend, step: StepInputs, rows: Tensor) -> Tensor:
        if self.joins_first:
            rows = self.norm.apply(backend, backend.join_rows(rows, self.n, step))
        else:
            rows = backend.join_rows(self.norm.apply(backend, rows), self.n, step)
        return backend.linear(backend.activate(backend.linear(rows, self.up), None, "gelu"), self.down)


class RowMerger:
    """A norm of each patch and a matrix of squares of them, in some models; then an MLP."""

    def __init__(self, cfg: ChatVisionConfig, w: Weights):
        width = cfg.layers.width
        self.n = cfg.n_merged
        self.act = cfg.activation
        self.norm = w.norm("norm", width) if w.has("norm.weight") else None
        self.matrix = w.linear("joined", width, self.n * width) if self.n > 1 else None
        self.up = w.linear("up", cfg.width_out, width, bias=w.has("up.bias"))
        self.down = w.linear("down", cfg.width_out, cfg.width_out, bias=w.has("down.bias"))

    def __call__(self, backend: Backend, step: StepInputs, rows: Tensor) -> Tensor:
        rows = self.norm.apply(backend, rows) if self.norm else rows
        rows = backend.join_rows(rows, self.n, step)
        rows = backend.linear(rows, self.matrix) if self.matrix else rows
        rows = backend.activate(backend.linear(rows, self.up), None, self.act)
        return backend.linear(rows, self.down)
