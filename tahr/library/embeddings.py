"""Embeddings: a text's states after the final norm, pooled to one vector of length 1."""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from enum import StrEnum

import numpy as np

from tahr.backends.api import Floats
from tahr.config import LoraChoice
from tahr.engine.engine import Engine
from tahr.engine.sequence import NO_ROW, Output
from tahr.errors import ConfigError


class Pooling(StrEnum):
    """How the states of a text's tokens become one vector."""

    LAST = "last"
    MEAN = "mean"
    MAX = "max"
    CLS = "cls"  # the first token's


# How the states of the next tokens [n, width] change what was pooled so far; nothing, at first.
POOLERS: dict[Pooling, Callable[[Floats], Floats]] = {
    Pooling.LAST: lambda states: states[-1],
    Pooling.MEAN: lambda states: np.add.reduce(states, axis=0),  # divided at the end
    Pooling.MAX: lambda states: states.max(axis=0),
    Pooling.CLS: lambda states: states[0],
}


class Pooler:
    """Pools the states of one text as they come, chunk by chunk."""

    def __init__(self, pooling: Pooling | str):
        if pooling not in POOLERS:
            raise ConfigError(f"There is no pooling {pooling!r}: take one of {', '.join(Pooling)}.")
        self.pooling = Pooling(pooling)
        self._pooled: Floats | None = None
        self._n_tokens = 0

    @property
    def first_row(self) -> int:
        """From which token on states are wanted; the last one's always are."""
        return NO_ROW if self.pooling is Pooling.LAST else 0

    def __call__(self, states: Floats) -> None:
        """The states of the next tokens."""
        if not len(states):
            return
        self._n_tokens += len(states)
        before = [] if self._pooled is None else [self._pooled[None]]
        self._pooled = np.array(POOLERS[self.pooling](np.concatenate([*before, states])))

    def vector(self) -> Floats:
        """The pooled vector, made 1 long."""
        if self._pooled is None:
            raise ConfigError("A text without tokens has no embedding: give at least one token of text.")
        vector = self._pooled / np.float32(self._n_tokens) if self.pooling is Pooling.MEAN else self._pooled
        length = float(np.linalg.norm(vector)) or 1.0  # nothing makes a zero vector longer
        return (vector / length).astype(np.float32)


def pool(states: Floats, pooling: Pooling | str = Pooling.LAST) -> Floats:
    """One vector of length 1 from the states [n, width] of a text's tokens."""
    pooler = Pooler(pooling)
    pooler(states)
    return pooler.vector()


class EmbeddingJob:
    """Texts that an engine embeds beside everything else it does; each is a sequence that wants hidden rows."""

    def __init__(
        self,
        engine: Engine,
        texts: ListOf[ListOf[int]],
        pooling: Pooling | str = Pooling.LAST,
        lora: str | ListOf[LoraChoice] = (),
    ):
        check(texts, engine.context_size)
        self._engine = engine
        self._poolers = [Pooler(pooling) for _ in texts]
        self.sequences = [
            engine.submit_rows(text, pooler, Output.HIDDEN, pooler.first_row, lora=lora)
            for text, pooler in zip(texts, self._poolers, strict=True)
        ]

    @property
    def finished(self) -> bool:
        return all(seq.done for seq in self.sequences)

    def abort(self) -> None:
        """Stop what still runs and free what it holds."""
        for seq in self.sequences:
            self._engine.abort(seq)

    def vectors(self) -> Floats:
        """One row per text: [n_texts, width]. Raises the error of a text that failed."""
        for seq in self.sequences:
            if seq.error:
                raise seq.error
        width = self._engine.runner.decoder.config.width
        return np.array([pooler.vector() for pooler in self._poolers], np.float32).reshape(-1, width)


def embed(engine: Engine, texts: ListOf[ListOf[int]], pooling: Pooling | str = Pooling.LAST) -> Floats:
    """Embed texts, given as tokens, with an engine that does nothing else meanwhile."""
    job = EmbeddingJob(engine, texts, pooling)
    try:
        while not job.finished:
            engine.step()
        return job.vectors()
    finally:
        job.abort()


def check(texts: ListOf[ListOf[int]], context_size: int) -> None:
    """Refuse texts that cannot be embedded."""
    longest = max(map(len, texts), default=0)
    if longest > context_size:
        raise ConfigError(
            f"A text has {longest} tokens, but the context holds {context_size}: shorten it, or raise the context size."
        )
    if not all(texts):
        raise ConfigError("A text without tokens has no embedding: give at least one token of text.")
