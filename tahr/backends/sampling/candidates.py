"""The best tokens of some rows, and what is known of the tokens beyond them: what the stages work on."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tahr.backends.sampling.lanes import Doubles, Ints, first_above, running_sums
from tahr.backends.sampling.uniform import uniform

Flags = NDArray[np.bool_]


class Candidates:
    """Rows of tokens, best first. A row is `open` while tokens beyond the list are still in play.

    A stage that cannot decide from an open row says so in `unsure`; that row is then done again with a longer list,
    and a list of all tokens is never open. So a short list changes the time it takes, never the outcome.
    """

    def __init__(
        self,
        ids: Ints,
        logits: Doubles,
        n_vocab: int,
        params: NDArray[np.void],  # rows of SAMPLE_ROW
        facts: Mapping[str, Doubles],  # about whole rows, by the names in `stages.FACTS`; what is missing is unknown
    ):
        self.ids = ids
        self.params = params
        self.facts = facts
        self.uniforms = uniforms_of(params)
        self.alive: Flags = np.isfinite(logits)
        self.logits = logits - logits[:, :1]
        self.weights = np.exp(self.logits)
        self.open = self.alive[:, -1] & (ids.shape[1] < n_vocab)
        self.unsure = np.zeros(len(ids), bool)
        self.total = self.fact("total")

    def fact(self, name: str) -> Doubles:
        return self.facts[name].copy() if name in self.facts else np.full(len(self.ids), np.nan)

    def parameter(self, name: str) -> Doubles:
        """A parameter of each row, as a column."""
        column: Doubles = self.params[name][:, None]
        return column

    def mass(self) -> Doubles:
        """Weight of all tokens still in play, as a column."""
        self.unsure |= self.open & np.isnan(self.total)
        return np.where(self.open, self.total, self.weights.sum(axis=1))[:, None]

    def entropy(self) -> Doubles:
        """Entropy of the tokens still in play, in nats, as a column."""
        p = self.weights / self.weights.sum(axis=1, keepdims=True)
        listed = -(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(axis=1)
        whole = np.where(self.alive.all(axis=1), self.fact("entropy"), np.nan)
        self.unsure |= self.open & np.isnan(whole)
        return np.where(self.open, whole, listed)[:, None]

    def drop(self, dropped: Flags) -> None:
        """Take tokens out of play."""
        self.total -= np.where(dropped, self.weights, 0).sum(axis=1)
        self.alive &= ~dropped
        self.weights[dropped] = 0

    def cut(self, kept: Flags, beyond: Flags | None = None) -> None:
        """Keep some tokens. If tokens `beyond` the list may stay, as they may if its last one does, nothing is sure."""
        self.drop(~kept)
        self.unsure |= self.open & (kept[:, -1] if beyond is None else beyond)
        self.open[:] = False

    def apply_temperature(self, temperature: Doubles) -> None:
        """Divide the logits by a temperature per row.

        The best token in play gets the weight 1: beside the best of all, what is left could weigh nothing.
        """
        self.logits -= np.where(self.alive, self.logits, -np.inf).max(axis=1, keepdims=True)
        self.logits /= temperature
        weights = np.exp(np.minimum(self.logits, 0))
        total = self.fact("total_at_temperature") - np.where(self.alive, 0, weights).sum(axis=1)
        self.total = np.where(self.alive[:, 0], total, np.nan)  # known beside the best of all
        self.weights = np.where(self.alive, weights, 0)

    def draw(self) -> tuple[Ints, Doubles]:
        """A token of each row by its weight, and the probability it had."""
        sums = running_sums(self.weights)
        mass = self.mass()[:, 0]
        target = self.uniforms[:, 1] * mass
        self.unsure |= self.open & ~(target < sums[:, -1])
        # A row that is not sure may have nothing left; it is drawn from again, so any place will do.
        at = (np.arange(len(sums)), np.minimum(first_above(sums, target), sums.shape[1] - 1))
        return self.ids[at], self.weights[at] / mass


def uniforms_of(params: NDArray[np.void]) -> Doubles:
    """Two random numbers for each row: one for XTC, one for the draw."""
    first = params["counter"] * np.uint64(2)
    return np.stack([uniform(params["key"], first), uniform(params["key"], first + np.uint64(1))], axis=1)
