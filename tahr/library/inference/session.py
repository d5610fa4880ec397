"""One text in a model's memory: feed it tokens, take logits, go back, copy what it holds and put it back."""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, replace
from typing import SupportsIndex

from tahr.backends.api import Bytes, Floats
from tahr.engine.engine import Engine
from tahr.engine.sequences.sequence import Sequence
from tahr.errors import ConfigError
from tahr.kv.codec import TextRows, layout_of, read_text, write_text
from tahr.kv.layout import PageLayout
from tahr.library.feeder import Feeder, LastRow
from tahr.library.inputs.arguments import token_ids


@dataclass(frozen=True, slots=True, eq=False)
class KvCopy:
    """A text's memory on the host: keys and values per layer as `Backend.read_pages` gives them, and states."""

    tokens: tuple[int, ...]
    layers: tuple[Bytes, ...]
    dtype: str
    model: object  # whose they are: restoring into another model is refused
    states: tuple[Floats, ...] = ()  # states after the last token: [1, *shape]
    adapter: str = ""  # the digest of the adapters they were computed with

    @property
    def n_bytes(self) -> int:
        return self.rows.n_bytes

    @property
    def rows(self) -> TextRows:
        """The rows without their owner."""
        return TextRows(self.layers, self.states)

    def compact(self) -> "KvCopy":
        """A copy in memory of its own."""
        rows = self.rows.compact()
        return replace(self, layers=rows.layers, states=rows.states)

    def first(self, n_tokens: int) -> "KvCopy":
        """A copy for the beginning of the text; states cannot go back."""
        if n_tokens == len(self.tokens) and all(len(layer) == n_tokens for layer in self.layers):
            return self
        if self.states:
            raise ConfigError("The model has states, which are those after the last token: restore the whole copy.")
        layers = self.rows.first(n_tokens).layers
        return KvCopy(self.tokens[:n_tokens], layers, self.dtype, self.model, adapter=self.adapter)


class Session:
    """A sequence of an engine that keeps the whole text in every layer, windows or not, so that it can go back."""

    def __init__(self, engine: Engine, model: object):
        self.engine = engine
        self.model = model
        self._feeder = Feeder(engine)
        self._last = LastRow()
        self._seq: Sequence | None = None  # None: the text is empty

    @property
    def sequence(self) -> Sequence:
        """The engine's sequence of a text that is not empty."""
        assert self._seq
        return self._seq

    @property
    def length(self) -> int:
        return len(self._seq.tokens) if self._seq else 0

    @property
    def tokens(self) -> list[int]:
        """The tokens whose keys and values are stored."""
        return list(self._seq.tokens) if self._seq else []

    @property
    def context_size(self) -> int:
        return self.engine.context_size

    @property
    def n_remaining(self) -> int:
        """How many more tokens fit."""
        return self.context_size - self.length

    @property
    def kv_dtype(self) -> str:
        return self.engine.executor.facts.memory.dtype

    def feed(self, tokens: ListOf[int]) -> Floats:
        """Compute tokens after those that are here; the logits of the last. After an error the text is empty."""
        tokens = token_ids(tokens)
        if self._seq is None:
            self._seq = self._feeder.open(tokens, self._last)
        else:
            self._feeder.feed(self._seq, tokens)
        self._compute(self._feeder.run, self._seq)
        return self._last.row

    def _compute(self, run: Callable[[Sequence], None], seq: Sequence) -> None:
        try:
            run(seq)
        finally:
            if seq.done:
                self._seq = None

    @property
    def adapter(self) -> str:
        """The digest of the adapters that texts are computed with."""
        return self.engine.adapters.default.digest

    def compute_again(self) -> None:
        """Compute the text with the weights as they are now."""
        tokens = self.tokens
        self.truncate(0)
        if tokens:
            self.feed(tokens)

    def truncate(self, n_tokens: int) -> None:
        """Behave as if only the first n tokens had been fed."""
        if not isinstance(n_tokens, SupportsIndex) or not 0 <= n_tokens <= self.length:
            raise ConfigError(f"The text has {self.length} tokens and cannot be cut to {n_tokens}.")
        if self._seq and n_tokens:
            self._feeder.truncate(self._seq, n_tokens)
        elif self._seq:
            self._feeder.close(self._seq)
            self._seq = None

    def copy(self) -> KvCopy:
        """A copy of the text's rows in host memory. After an error the text is empty."""
        if self._seq:
            self._compute(self._feeder.resume, self._seq)
        pages, slot = self._held()
        rows = read_text(self.engine.executor.pages, pages, slot, self.length)
        return KvCopy(tuple(self.tokens), rows.layers, self.kv_dtype, self.model, rows.states, self.adapter)

    def layout(self) -> PageLayout:
        """The layout of copies of any text."""
        rows = read_text(self.engine.executor.pages, (), 0, 0)
        return layout_of(self.kv_dtype, rows.shapes, self.engine.executor.facts.memory.layout.states)

    def _held(self) -> tuple[ListOf[int], int]:
        """The pages and the slot of the text."""
        seq = self._seq
        return (seq.memory.tables[0].pages if seq and seq.memory.tables else []), (seq.memory.slot if seq else 0)

    def restore(self, copy: KvCopy) -> None:
        """Hold exactly what was copied."""
        if not isinstance(copy, KvCopy):
            raise ConfigError("What is to be restored is no KV copy: give what kv_snapshot() returned.")
        if copy.model is not self.model or copy.dtype != self.kv_dtype:
            raise ConfigError(
                "The KV copy was made by another model, so it means nothing to this one: prefill instead."
            )
        if copy.adapter != self.adapter and copy.tokens:
            raise ConfigError("The KV copy was made with other adapters than those applied now: prefill instead.")
        self.truncate(0)
        if not copy.tokens:
            return
        self._seq = self._feeder.restore(copy.tokens, self._last)
        pages, slot = self._held()
        shapes = self.engine.executor.facts.memory.state_shapes
        states = tuple(state.reshape(1, *shape) for state, shape in zip(copy.states, shapes, strict=True))
        page_size = self.engine.executor.facts.memory.page_size
        write_text(self.engine.executor.pages, pages, slot, page_size, TextRows(copy.layers, states))
