"""A tower: layers without pages that make rows for a decoder of what is no text."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tahr.backends.api import Backend, KVShape, KVStore, StepInputs, Tensor
from tahr.weights.watch import FileWatch

Part = Callable[[Backend, StepInputs, KVStore], Tensor]


class Tower(Protocol):
    """An encoder whose layers see all of an input, and nothing but that.

    Its steps hold whole inputs, each a sequence of the step, so that attention ends where an input does. A part of its
    layers runs at a time, so that a long input does not keep steps of texts waiting. Each part takes its rows with
    `take_rows`, and what it makes of them goes on with `store_rows`: to the next part, and from the last one to the
    decoder. The last part may give fewer rows than tokens: `step.logit_rows` names the first token of each.

    All layers use the memory of one, layer 0 of the store: it holds the tokens of a step, and no page outlives it.
    """

    width_in: int  # numbers of an input row
    width: int  # numbers of a row between two parts, at least as many as the last one gives
    memory: KVShape  # memory of a layer for a token
    files: FileWatch  # files that steps read

    @property
    def parts(self) -> Sequence[Part]:
        """Runs of its layers, in order."""
