"""The input of a decoder's first layer."""

from typing import Protocol

from tahr.backends.api import Backend, Extras, StepInputs, Tensor, Weight
from tahr.models.config.record import ModelConfig
from tahr.models.parts.weights import Weights


class InputEmbedding(Protocol):
    """Makes the rows of a step's tokens."""

    @property
    def table(self) -> Weight:
        """The table of tokens."""

    def __call__(self, backend: Backend, step: StepInputs) -> Tensor: ...


class TokenEmbedding:
    """Rows of a table, or those that a step reads in their place; in some families with learned positions or a norm."""

    def __init__(self, cfg: ModelConfig, w: Weights):
        self.scale = cfg.embed_scale
        self.table = w.matrix("model.embed_tokens.weight", cfg.n_vocab, cfg.width)
        self.norm = w.norm("model.embed_norm") if w.has("model.embed_norm.weight") else None
        self.positions = None
        if cfg.n_positions:
            self.positions = w.matrix("model.embed_positions.weight", cfg.n_positions, cfg.width)

    def __call__(self, backend: Backend, step: StepInputs) -> Tensor:
        rows = backend.embed(self.table, step, self.scale)
        if step.limits.extras & Extras.ROWS:
            rows = backend.with_rows(rows, step)
        if self.positions:
            rows = backend.add(rows, backend.embed_positions(self.positions, step))
        return self.norm.apply(backend, rows) if self.norm else rows
