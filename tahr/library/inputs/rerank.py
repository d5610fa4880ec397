"""Pairs of texts by how well they go together: a cross-encoder's score, or the cosine of two embeddings."""

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from math import exp

import numpy as np

from tahr.backends.api import Floats
from tahr.errors import ConfigError
from tahr.library.inputs.arguments import texts_of
from tahr.library.inputs.text_inputs import TextInputs


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document's place in the list it was given in, and its score."""

    index: int
    score: float


@dataclass(frozen=True, slots=True)
class PairPlan:
    """Work to score pairs: `texts`, of which pair i takes those at `firsts[i]` and `seconds[i]`.

    A cross-encoder's texts are the pairs themselves.
    """

    texts: list[list[int]]
    firsts: list[int]
    seconds: list[int]
    is_cross: bool
    sigmoid: bool = False

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.texts))

    def scores(self, vectors: Floats) -> list[float]:
        """The score of every pair, given what the model made of the texts."""
        if self.is_cross:
            return [sigmoid(float(score)) if self.sigmoid else float(score) for score in vectors[:, 0]]
        return [float(np.dot(vectors[i], vectors[j])) for i, j in zip(self.firsts, self.seconds, strict=True)]


def plan_pairs(
    inputs: TextInputs, firsts: str | Iterable[str], seconds: str | Iterable[str], truncate: int | None = None
) -> PairPlan:
    """Score every first text with the second at its place; a single first text goes with all of them."""
    firsts = plain_texts(firsts)
    seconds = plain_texts(seconds)
    if len(firsts) not in (1, len(seconds)):
        raise ConfigError(
            f"There are {len(firsts)} first and {len(seconds)} second texts: give one first text, or as many."
        )
    if inputs.encoding is None:
        raise ConfigError("This model generates text and is not trained to compare texts: choose a reranker.")
    if inputs.scores_pairs:
        # goes before any pair: one opening may belong to all
        openings = [inputs.encode_first(first, truncate) for first in firsts]
        pairs = ((openings[i % len(openings)], second) for i, second in enumerate(seconds))
        texts = [inputs.encode_pair(opening, second, truncate) for opening, second in pairs]
        return PairPlan(texts, [], [], is_cross=True, sigmoid=inputs.encoding.sigmoid)
    prompts = inputs.prompt_for("query"), inputs.prompt_for("document")
    queries = [inputs.encode(text, prompts[0], truncate) for text in firsts]
    documents = [inputs.encode(text, prompts[1], truncate) for text in seconds]
    places = [i % len(firsts) for i in range(len(seconds))]
    return PairPlan(queries + documents, places, [len(firsts) + i for i in range(len(seconds))], is_cross=False)


def plain_texts(texts: str | Iterable[str]) -> list[str]:
    """One or several texts; tokens, which other calls take too, have no pairs."""
    several = texts_of(texts)
    if not all(isinstance(each, str) for each in several):
        raise ConfigError("Texts to compare must be texts: decode those that are lists of tokens.")
    return several


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x)) if x > 0 else exp(x) / (1 + exp(x))  # neither can overflow


def ranked(scores: ListOf[float], top_n: int | None = None) -> list[RankedDocument]:
    """The best first; of equal ones, the one that came first."""
    if top_n is not None and top_n < 1:
        raise ConfigError(f"top_n is {top_n}, but it must be at least 1.")
    best = sorted(range(len(scores)), key=lambda i: -scores[i])[:top_n]
    return [RankedDocument(i, scores[i]) for i in best]
