"""Picks the next token of each sequence from its logits. All state of a request lives in its `Picker`."""

from collections.abc import Sequence as ListOf

import numpy as np
from numpy.typing import NDArray

from tahr.config import SamplingParams
from tahr.errors import GenerateError

Floats = NDArray[np.float32]
SHORTLIST = 1024  # tokens sorted before the whole vocabulary is: the nucleus almost always lies within


class Picker:
    """Sampling parameters and random numbers of one request, so that its picks never depend on its neighbours."""

    def __init__(self, params: SamplingParams):
        self.params = params
        self._random = np.random.Generator(np.random.Philox(params.seed))

    def pick(self, logits: Floats, tokens: ListOf[int]) -> int:
        """The next token after `tokens`."""
        p = self.params
        logits = penalise(logits, tokens, p)
        best = int(np.argmax(logits))
        if not np.isfinite(logits[best]):
            raise GenerateError("The model produced logits that are not numbers, so this request cannot go on.")
        if p.temperature == 0:
            return best
        candidates, weights = shortlist(logits, p)
        return int(candidates[np.searchsorted(np.cumsum(weights), self._random.random() * weights.sum(), side="right")])


def penalise(logits: Floats, tokens: ListOf[int], params: SamplingParams) -> Floats:
    """Repetition penalty: positive logits divided, negative multiplied, once per distinct token of the window."""
    window = params.repeat_last_n or 0
    if params.repetition_penalty in (None, 1.0) or not window:
        return logits
    seen = np.unique(np.array(tokens[-window:], np.int64))
    penalty = np.float32(params.repetition_penalty)
    logits = logits.copy()
    chosen = logits[seen]
    logits[seen] = np.where(chosen > 0, chosen / penalty, chosen * penalty)
    return logits


def shortlist(logits: Floats, params: SamplingParams) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Tokens that survive temperature, top-k, min-p and top-p, in this order, with their weights, best first."""
    weights = np.exp((logits - logits.max()).astype(np.float64) / (params.temperature or 1.0))
    order = candidates(weights, params)
    kept = weights[order]
    if params.min_p:
        kept = kept[kept >= params.min_p * kept[0]]
    total = kept.sum() if params.top_k or params.min_p else weights.sum()
    if params.top_p is not None and params.top_p < 1:
        kept = kept[: int(np.searchsorted(np.cumsum(kept), params.top_p * total)) + 1]
    return order[: len(kept)], kept


def candidates(weights: NDArray[np.float64], params: SamplingParams) -> NDArray[np.int64]:
    """Tokens worth sorting, best first: a short list where it surely holds all that min-p and top-p keep."""
    if params.top_k:
        return best_first(weights, params.top_k)
    short = best_first(weights, SHORTLIST)
    best = weights[short]
    if params.min_p:
        covers = best[-1] < params.min_p * best[0]
    else:
        covers = params.top_p is not None and params.top_p < 1 and best.sum() >= params.top_p * weights.sum()
    return short if covers else best_first(weights, len(weights))


def best_first(weights: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """Indices of the n largest, largest first; ties go to the lower index."""
    if n >= len(weights):
        return np.argsort(-weights, kind="stable")
    # Everything that ties with the n-th is kept until the sort decides, so that ties never depend on partitioning.
    threshold = np.partition(weights, len(weights) - n)[len(weights) - n]
    at = np.flatnonzero(weights >= threshold)
    return at[np.argsort(-weights[at], kind="stable")][:n]
