"""Layers after pooling: linears that turn the vector of a text into its embedding, or into the score of a pair."""

from collections.abc import Callable
from dataclasses import dataclass

from tahr.backends.api import Backend, Floats, Linear, Tensor
from tahr.models.config.record import ModelConfig
from tahr.models.parts.encoding import Encoding
from tahr.models.parts.weights import Norm, Weights

ACTIVATIONS: dict[str, Callable[[Backend, Tensor], Tensor]] = {
    "": lambda backend, x: x,
    "tanh": lambda backend, x: backend.softcap(x, 1.0),
    "gelu": lambda backend, x: backend.activate(x, None, "gelu"),
}
# Activations after the first linear of a family's classifier.
CLASSIFIERS = {"bert": "tanh", "roberta": "tanh", "modernbert": "gelu"}


@dataclass(frozen=True, slots=True)
class HeadStep:
    """A linear, an activation and, in some heads, a norm."""

    linear: Linear
    activation: str = ""
    norm: Norm | None = None

    def apply(self, backend: Backend, x: Tensor) -> Tensor:
        """The next rows."""
        x = ACTIVATIONS[self.activation](backend, backend.linear(x, self.linear))
        return self.norm.apply(backend, x) if self.norm else x


@dataclass(frozen=True, slots=True)
class TextHead:
    """The steps from pooled vectors to results of `width` numbers."""

    steps: tuple[HeadStep, ...]
    width: int

    def apply(self, backend: Backend, pooled: Floats) -> Floats:
        """The results [n, width] of pooled vectors; a row never depends on the others."""
        x = backend.tensor(pooled)
        for step in self.steps:
            x = step.apply(backend, x)
        return backend.read(x).copy()


def text_head(cfg: ModelConfig, encoding: Encoding, w: Weights) -> TextHead | None:
    """The head that the files hold; None: pooled vectors are the result."""
    if encoding.scores_pairs:
        return TextHead(
            (*first_step(cfg, w), HeadStep(linear(w, "classifier.out", cfg.n_labels, cfg.width))), cfg.n_labels
        )
    for name in ("classifier.dense", "pooler.dense"):  # carried along by checkpoints, of no use to embeddings
        w.skip(f"{name}.weight")
        w.skip(f"{name}.bias")
    if not encoding.dense:
        return None
    steps = [
        HeadStep(w.linear(f"dense.{i}", each.n_out, each.n_in, each.biased), each.activation)
        for i, each in enumerate(encoding.dense)
    ]
    return TextHead(tuple(steps), encoding.dense[-1].n_out)


def first_step(cfg: ModelConfig, w: Weights) -> tuple[HeadStep, ...]:
    if not w.has("classifier.dense.weight"):
        return ()
    norm = w.norm("classifier.norm") if w.has("classifier.norm.weight") else None
    return (HeadStep(linear(w, "classifier.dense", cfg.width, cfg.width), CLASSIFIERS[cfg.family], norm),)


def linear(w: Weights, name: str, n_rows: int, n_cols: int) -> Linear:
    return w.linear(name, n_rows, n_cols, bias=w.has(f"{name}.bias"))
