"""One text in a model's memory: feed it tokens, read logits, go back, copy what it holds and put it back."""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass

import numpy as np

from tahr.backends.api import Bytes, Floats
from tahr.errors import ConfigError
from tahr.kv.pages import pages_for
from tahr.library.lanes import PAGE_SIZE, Lanes


@dataclass(frozen=True, slots=True, eq=False)
class KvCopy:
    """The keys and values of a text in host memory: per layer [2, n_tokens, n_heads, bytes of one head]."""

    tokens: tuple[int, ...]
    layers: tuple[Bytes, ...]
    dtype: str
    model: object  # whose they are: restoring into another model is refused

    @property
    def n_bytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def first(self, n_tokens: int) -> "KvCopy":
        """The same for the beginning of the text."""
        return KvCopy(self.tokens[:n_tokens], tuple(x[:, :n_tokens] for x in self.layers), self.dtype, self.model)


class Session:
    """A lane with its whole context to itself."""

    def __init__(self, lanes: Lanes, model: object):
        self._lanes = lanes
        self._lane = lanes.open()
        self.model = model
        self.backend = lanes.backend

    @property
    def length(self) -> int:
        return self._lane.computed

    @property
    def tokens(self) -> list[int]:
        """The tokens whose keys and values are stored."""
        return self._lane.tokens[: self.length]

    @property
    def context_size(self) -> int:
        return self._lanes.limits.n_tokens

    @property
    def room(self) -> int:
        """How many more tokens fit."""
        return self.context_size - self.length

    @property
    def kv_dtype(self) -> str:
        return self._lanes.kv.dtype

    def feed(self, tokens: ListOf[int]) -> Floats:
        """Compute tokens after those that are here; the logits of the last."""
        return self._lanes.read(self._lane, tokens)

    def truncate(self, n_tokens: int) -> None:
        """Behave as if only the first n tokens had been fed."""
        if not 0 <= n_tokens <= self.length:
            raise ConfigError(f"The text has {self.length} tokens and cannot be cut to {n_tokens}.")
        self._lanes.truncate(self._lane, n_tokens)

    def copy(self) -> KvCopy:
        """What is stored, in host memory."""
        layers = self._lanes.backend.read_pages(self._lanes.kv, self._lane.tables[0].pages)
        whole = KvCopy(tuple(self.tokens), tuple(layers), self.kv_dtype, self.model)
        return whole.first(self.length)

    def empty_layers(self) -> list[Bytes]:
        """What a copy of nothing would hold: only its shapes say something."""
        return self._lanes.backend.read_pages(self._lanes.kv, [])

    def restore(self, copy: KvCopy) -> None:
        """Hold exactly what was copied."""
        if copy.model is not self.model or copy.dtype != self.kv_dtype:
            raise ConfigError(
                "The KV copy was made by another model, so it means nothing to this one: prefill instead."
            )
        self._lanes.truncate(self._lane, 0)
        if not copy.tokens:
            return
        self._lanes.take_over(self._lane, copy.tokens)
        n_padding = pages_for(len(copy.tokens), PAGE_SIZE) * PAGE_SIZE - len(copy.tokens)
        padded = [np.pad(layer, ((0, 0), (0, n_padding), (0, 0), (0, 0))) for layer in copy.layers]
        self._lanes.backend.write_pages(self._lanes.kv, self._lane.tables[0].pages, padded)
