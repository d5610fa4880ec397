"""A tower: layers without pages that make rows for a decoder of what is no text."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tahr.backends.api import Backend, KVShape, KVStore, Linear, StepInputs, Tensor
from tahr.models.config.record import ModelConfig
from tahr.weights.watch import FileWatch

Part = Callable[[Backend, StepInputs, KVStore], Tensor]
PART_PRODUCTS = 10**10  # products of numbers in a part: of a step that is full, on two cores, a tenth of a second


class Tower(Protocol):
    """An encoder whose layers see all of an input, and nothing but that.

    Its steps hold whole inputs, each a sequence of the step, so that attention ends where an input does. A part of its
    layers runs at a time, so that a long input does not keep steps of texts waiting. Each part takes its rows with
    `take_rows`, and what it makes of them goes on with `store_rows`: to the next part, and from the last one to the
    decoder. The last part may give fewer rows than tokens: `step.logit_rows` names a token of each. Where these are
    vectors for the host, it returns them and stores nothing.

    All layers use the memory of one, layer 0 of the store: it holds the tokens of a step, and no page outlives it.
    """

    width_in: int  # numbers of an input row
    width: int  # numbers of a row between two parts, at least as many as the last one gives
    n_tokens: int  # tokens of a step: as many as the longest input has, or more
    memory: KVShape  # memory of a layer for a token
    files: FileWatch  # files that steps read
    matrix: Linear  # a linear of a layer: rows are computed in its type
    n_joined: int  # neighbours that become a row in the last part, which reads no others; 0: it reads all rows

    @property
    def windowed(self) -> Sequence[bool]:
        """By part, whether attention ends at the windows of an input; empty: nowhere."""

    @property
    def parts(self) -> Sequence[Part]:
        """Runs of its layers, in order."""


def layer_runs(layers: ModelConfig, n_tokens: int, speed: int, n_seen: int | None = None) -> list[range]:
    """Layers by part, in steps of so many tokens, of which each sees all or `n_seen`; see `StepDefaults`."""
    products = layers.width * (4 * layers.width + 2 * layers.ffn_width + 2 * (n_seen or n_tokens))
    return runs_of_layers(layers.n_layers, n_tokens * products // speed)


def runs_of_layers(n_layers: int, n_products: int) -> list[range]:
    """Layers by part, given the products of a layer in a step: as many as are done in about a tenth of a second."""
    n = max(1, PART_PRODUCTS // max(n_products, 1))
    return [range(first, min(first + n, n_layers)) for first in range(0, n_layers, n)]
