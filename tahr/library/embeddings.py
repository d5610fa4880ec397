"""Embeddings: a text's states after the final norm, pooled to one vector of length 1."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf
from enum import StrEnum

import numpy as np

from tahr.backends.api import Backend, Floats
from tahr.errors import ConfigError
from tahr.kv.pages import pages_for
from tahr.library.lanes import PAGE_SIZE, LaneLimits, Lanes
from tahr.models.decoder import Decoder

CHUNK = 512  # tokens of one step
N_LANES = 32  # texts of one step
SMALLEST = 512  # tokens the memory holds at first; it grows to the longest text seen


class Pooling(StrEnum):
    """How the states of a text's tokens become one vector."""

    LAST = "last"
    MEAN = "mean"
    MAX = "max"
    CLS = "cls"  # the first token's


POOLERS: dict[Pooling, Callable[[Floats], Floats]] = {
    Pooling.LAST: lambda states: states[-1],
    Pooling.MEAN: lambda states: states.mean(axis=0),
    Pooling.MAX: lambda states: states.max(axis=0),
    Pooling.CLS: lambda states: states[0],
}


def pool(states: Floats, pooling: Pooling | str = Pooling.LAST) -> Floats:
    """One vector of length 1 from the states [n, width] of a text's tokens."""
    if pooling not in POOLERS:
        raise ConfigError(f"There is no pooling {pooling!r}: take one of {', '.join(Pooling)}.")
    if not len(states):
        raise ConfigError("A text without tokens has no embedding: give at least one token of text.")
    vector = POOLERS[Pooling(pooling)](states)
    length = float(np.linalg.norm(vector)) or 1.0  # nothing makes a zero vector longer
    return (vector / length).astype(np.float32)


class Embedder:
    """Embeds texts in memory of its own, so that nothing else is disturbed; short texts share a step."""

    def __init__(self, backend: Backend, decoder: Decoder, context_size: int, kv_dtype: str | None = None):
        self._backend, self._decoder, self._kv_dtype = backend, decoder, kv_dtype
        self.context_size = context_size
        self._lanes: Lanes | None = None

    def embed(self, texts: ListOf[ListOf[int]], pooling: Pooling | str = Pooling.LAST) -> Floats:
        """One row per text, given as tokens: [n_texts, width]."""
        self._check(texts)
        vectors = [pool(states, pooling) for group in groups(texts) for states in self._states(group)]
        return np.array(vectors, np.float32).reshape(len(texts), self._decoder.config.width)

    def _check(self, texts: ListOf[ListOf[int]]) -> None:
        longest = max(map(len, texts), default=0)
        if longest > self.context_size:
            raise ConfigError(
                f"A text has {longest} tokens, but the context holds {self.context_size}: shorten it, or raise the "
                "context size."
            )
        if not all(texts):
            raise ConfigError("A text without tokens has no embedding: give at least one token of text.")

    def _states(self, texts: ListOf[ListOf[int]]) -> list[Floats]:
        """The states of each text's tokens; several texts only if they fit into one step."""
        lanes = self._lanes_for(max(map(len, texts)))
        opened = [lanes.open() for _ in texts]
        try:
            if len(texts) > 1:
                rows = lanes.run(list(zip(opened, texts, strict=True)), n_rows=CHUNK)
                return np.split(rows, np.cumsum([len(text) for text in texts])[:-1])
            (text,) = texts
            chunks = [text[at : at + CHUNK] for at in range(0, len(text), CHUNK)]
            return [np.concatenate([lanes.run([(opened[0], chunk)], n_rows=CHUNK) for chunk in chunks])]
        finally:
            for lane in opened:
                lanes.truncate(lane, 0)

    def _lanes_for(self, n_tokens: int) -> Lanes:
        if self._lanes is None or self._lanes.limits.n_tokens < n_tokens:
            n_room = max(SMALLEST, 1 << (n_tokens - 1).bit_length())
            # A full step of short texts needs a page each, one long text needs its own length.
            n_pages = pages_for(max(n_room, CHUNK), PAGE_SIZE) + N_LANES
            limits = LaneLimits(n_room, N_LANES, CHUNK, n_rows=CHUNK, n_pages=n_pages)
            self._lanes = Lanes(self._backend, self._decoder, limits, self._kv_dtype, forward=self._decoder.hidden)
        return self._lanes


def groups(texts: ListOf[ListOf[int]]) -> Iterator[list[ListOf[int]]]:
    """Neighbouring texts that fit into one step together; a text longer than a step is alone."""
    group: list[ListOf[int]] = []
    for text in texts:
        if group and (len(group) == N_LANES or sum(map(len, group)) + len(text) > CHUNK):
            yield group
            group = []
        group.append(text)
    if group:
        yield group
