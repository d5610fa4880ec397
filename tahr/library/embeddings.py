"""Embeddings and scores of texts: their states after the final norm, pooled, and what the model's head makes of it.
A tower makes the vectors of images."""

from collections.abc import Callable, Sized
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tahr.backends.api import Floats
from tahr.config import LoraChoice, whole
from tahr.engine.engine import Engine
from tahr.engine.sequences.parts import NO_ROW
from tahr.engine.sequences.sequence import Sequence
from tahr.errors import ConfigError, GenerateError
from tahr.executor.output import Output
from tahr.generation.driver import Driver
from tahr.library.inputs.image_inputs import ImageRows
from tahr.models.parts.encoding import Encoding

Item = ListOf[int] | ImageRows  # a text, as tokens, or an image
MAX_QUEUED = 512  # texts of one job: others' texts get their turn after these


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


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """Options of embeddings."""

    pooling: Pooling | str | None = None  # None: the model's own; of a model that generates, the last token's
    normalize: bool = True  # vectors are 1 long
    dimensions: int | None = None  # the first so many numbers, for models trained for that


PLAIN = EmbeddingOptions()


class Pooler:
    """Pools the states of one text as they come, chunk by chunk."""

    def __init__(self, pooling: Pooling | str):
        if pooling not in tuple(Pooling):
            raise ConfigError(f"There is no pooling {pooling!r}: take one of {', '.join(Pooling)}.")
        self.pooling = Pooling(pooling)
        self._pooled: Floats | None = None
        self._n_tokens = 0

    @property
    def first_row(self) -> int:
        """The first token whose state is wanted; that of the last one always is."""
        return NO_ROW if self.pooling is Pooling.LAST else 0

    def holds(self, text: Sized) -> bool:
        """Whether it has all states of a text that it wants."""
        return self._n_tokens == (1 if self.pooling is Pooling.LAST else len(text))

    def __call__(self, states: Floats) -> None:
        """The states of the next tokens."""
        if not len(states):
            return
        self._n_tokens += len(states)
        before = [] if self._pooled is None else [self._pooled[None]]
        self._pooled = np.array(POOLERS[self.pooling](np.concatenate([*before, states])))

    def pooled(self) -> Floats:
        """The pooled vector."""
        if self._pooled is None:
            raise ConfigError("A text without tokens has no embedding: give at least one token of text.")
        mean: Floats = self._pooled / np.float32(self._n_tokens)
        return mean if self.pooling is Pooling.MEAN else self._pooled


def pool(states: Floats, pooling: Pooling | str = Pooling.LAST) -> Floats:
    """One vector of length 1 from the states [n, width] of a text's tokens."""
    pooler = Pooler(pooling)
    pooler(states)
    vector: Floats = normalized(pooler.pooled()[None])[0]
    return vector


def normalized(vectors: Floats) -> Floats:
    """The vectors [n, width] made 1 long; nothing makes a zero vector longer."""
    lengths = np.array([np.linalg.norm(vector) for vector in vectors], np.float32)  # row by row: alike in any batch
    lengths[lengths == 0] = 1
    scaled: Floats = (vectors / lengths[:, None]).astype(np.float32)
    return scaled


def own_pooling(encoding: Encoding | None) -> str:
    """How a model's states are pooled where nothing is asked."""
    return encoding.pooling if encoding else Pooling.LAST


class EmbeddingJob:
    """Texts and images that an engine embeds beside everything else it does; each is a sequence that wants rows.

    A cross-encoder's texts are pairs, and their vectors are scores.
    """

    def __init__(
        self,
        engine: Engine,
        items: ListOf[Item],
        options: EmbeddingOptions | Pooling | str = PLAIN,
        lora: str | ListOf[LoraChoice] = (),
        background: bool = False,
    ):
        check([item for item in items if not isinstance(item, ImageRows)], engine.context_size)
        self.options = options if isinstance(options, EmbeddingOptions) else EmbeddingOptions(options)
        if any(isinstance(item, ImageRows) for item in items):
            check_for_images(self.options, lora)
        facts = engine.facts
        self.width = facts.head_width or facts.width
        check_dimensions(self.options.dimensions, self.width)
        # Looked up once: an adapter that is removed or replaced meanwhile stays until the last text that uses it.
        self._engine = engine
        self._items = items
        self._background = background
        self._stack = engine.adapters.stack(lora)
        pooling = self.options.pooling or own_pooling(facts.encoding)
        self._poolers = [Pooler(Pooling.LAST if isinstance(item, ImageRows) else pooling) for item in items]
        self.sequences: list[Sequence] = []
        try:
            for _ in items[:MAX_QUEUED]:
                self._submit_next()
        except BaseException:
            self.abort()  # the texts before the one that was refused: nobody will wait for them
            raise

    def _submit_next(self) -> None:
        i = len(self.sequences)
        if i < len(self._items):
            sink = partial(self._take, i)
            item = self._items[i]
            if isinstance(item, ImageRows):
                self.sequences.append(self._engine.submit_image(item.source, sink, self._background))
            else:
                self.sequences.append(self._submit_text(i, item, sink))

    def _submit_text(self, i: int, text: ListOf[int], sink: Callable[[Floats], None]) -> Sequence:
        first_row = self._poolers[i].first_row
        return self._engine.submit_rows(
            text, sink, Output.HIDDEN, first_row, lora=self._stack, background=self._background
        )

    def _take(self, i: int, states: Floats) -> None:
        """The next states of an item; the next item is queued when it has all."""
        self._poolers[i](states)
        item = self._items[i]
        if isinstance(item, ImageRows) or self._poolers[i].holds(item):
            self._submit_next()

    @property
    def finished(self) -> bool:
        if any(seq.result.error for seq in self.sequences):
            return True
        return len(self.sequences) == len(self._items) and all(seq.done for seq in self.sequences)

    def abort(self) -> None:
        """Stop what still runs and free what it holds."""
        for seq in self.sequences:
            self._engine.abort(seq)

    def vectors(self) -> Floats:
        """One row per item: [n_items, width]. Raises the error of one that failed.

        Where the model has a head, it runs here: on the thread that steps the engine, between two steps.
        """
        for seq in self.sequences:
            if seq.result.error:
                raise seq.result.error
        facts = self._engine.facts
        rows = np.zeros((len(self._items), self.width), np.float32)
        is_image = np.array([isinstance(item, ImageRows) for item in self._items], bool)
        if is_image.any():
            rows[is_image] = self._pooled(is_image)
        if not is_image.all():
            rows[~is_image] = self._engine.executor.apply_text_head(self._pooled(~is_image))
        if not np.isfinite(rows).all():
            raise GenerateError("The model made numbers that are not finite: its weights may be damaged.")
        rows = rows[:, : self.options.dimensions]
        is_score = facts.encoding is not None and facts.encoding.scores_pairs
        return normalized(rows) if self.options.normalize and not is_score else rows.astype(np.float32)

    def _pooled(self, chosen: NDArray[np.bool_]) -> Floats:
        """The pooled vectors of some items."""
        return np.array([self._poolers[i].pooled() for i in np.flatnonzero(chosen)], np.float32)


def check_for_images(options: EmbeddingOptions, lora: str | ListOf[LoraChoice]) -> None:
    """Refuse what means nothing for images."""
    if options.pooling is not None:
        raise ConfigError("pooling is of texts: an image has one vector. Leave it out, or embed images by themselves.")
    if lora:
        raise ConfigError("lora changes texts alone: leave it out, or embed images by themselves.")


def embed(engine: Engine, texts: ListOf[ListOf[int]], options: EmbeddingOptions | Pooling | str = PLAIN) -> Floats:
    """Embed texts, given as tokens, with an engine that does nothing else meanwhile."""
    job = EmbeddingJob(engine, texts, options)
    try:
        Driver(engine).run(lambda: job.finished)
        return job.vectors()
    finally:
        job.abort()


def check(texts: ListOf[ListOf[int]], context_size: int) -> None:
    """Refuse texts that cannot be embedded."""
    longest = max(map(len, texts), default=0)
    if longest > context_size:
        raise ConfigError(
            f"A text has {longest} tokens, but the context holds {context_size}: shorten it, ask for it to be "
            "truncated, or raise the context size."
        )
    if not all(texts):
        raise ConfigError("A text without tokens has no embedding: give at least one token of text.")


def check_dimensions(dimensions: int | None, width: int) -> None:
    if dimensions is not None and not whole(1, width).holds(dimensions):
        raise ConfigError(f"dimensions is {dimensions!r}, but this model's vectors have {width} numbers.")
