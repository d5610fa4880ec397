"""Passes over whole rows of logits. Everything here is row by row: a row gives the same bits alone and among others."""

import numpy as np
from numpy.typing import NDArray

from tahr.backends.sampling.best_first import all_ids, best_ids
from tahr.backends.sampling.lanes import LANES, Doubles, Floats, Ints, first_above, fold, running_sums, sums
from tahr.backends.sampling.sample_rows import LogitEdits

LOWEST = np.finfo(np.float32).min  # limit below which no token is sampled: -inf is a ban


class LogitRows:
    """Copies of a few rows, free to be edited, padded with -inf so that they fold evenly.

    Made once for a step and loaded with part after part: fresh memory for each would cost as much as a pass over it.
    """

    def __init__(self, n: int, n_vocab: int):
        self.n_vocab = n_vocab
        self.n_columns = -(-n_vocab // LANES)
        self._memory = np.full((n, LANES * self.n_columns), -np.inf, np.float32)
        self._work = np.empty_like(self._memory)

    def load(self, logits: Floats) -> None:
        """Take in rows, at most as many as it was made for."""
        self._padded = self._memory[: len(logits)]
        self._scratch = self._work[: len(logits)]
        self.logits = self._padded[:, : self.n_vocab]
        self.logits[:] = logits

    def edit(self, row: int, edits: LogitEdits) -> None:
        """Apply the edits of a row."""
        edits.apply(row, self.logits[row])

    def mask(self, row: int, words: NDArray[np.uint32]) -> None:
        """Ban the tokens whose bits are not set."""
        bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")
        banned = bits[: self.n_vocab] == 0
        self.logits[row, banned] = -np.inf

    def settle(self) -> None:
        """Find the best token of each row, ties to the lower id; call it once the edits are done."""
        self.best: Ints = self.logits.argmax(axis=1)
        self.top = self.logits[np.arange(len(self.best)), self.best]
        self.unusable = ~np.isfinite(self.top)
        # A row without a best token is an error of its own; zeros keep it from disturbing the passes below.
        self.logits[self.unusable] = 0
        self._top = np.where(self.unusable, 0, self.top)[:, None].astype(np.float32)

    def depths(self) -> Floats:
        """How far each logit lies below the best, as a negative number, in memory the next pass overwrites."""
        return np.subtract(self._padded, self._top, out=self._scratch)

    def weights(self, temperature: Doubles) -> Floats:
        """Weights of all tokens at a temperature per row, the best having 1."""
        weights = self.depths()
        if (temperature != 1).any():
            # Beyond 1e30 the quotient no longer fits a float, and all but the best weigh nothing long before.
            weights *= np.minimum(1 / temperature, 1e30).astype(np.float32)[:, None]
        return np.exp(weights, out=weights)

    def totals(self, temperature: Doubles) -> Doubles:
        """Sums of all weights at a temperature per row."""
        return sums(self.weights(temperature))

    def entropies(self) -> Doubles:
        """Entropy of each row in nats, at temperature 1."""
        # -inf times a weight of 0 is not a number; -1e4 times 0 is the 0 that is meant.
        depths = np.maximum(self.depths(), np.float32(-1e4), out=self._scratch)
        weights = np.exp(depths)
        total = sums(weights)
        entropies: Doubles = np.log(total) - sums(np.multiply(weights, depths, out=weights)) / total
        return entropies

    def sigmas(self) -> Doubles:
        """Standard deviation of each row's logits, banned tokens left out."""
        banned = self._padded < LOWEST
        count = banned.shape[1] - np.count_nonzero(banned, axis=1)
        depths = self.depths()
        np.copyto(depths, 0, where=banned)
        depths -= (sums(depths) / count).astype(np.float32)[:, None]
        np.copyto(depths, 0, where=banned)
        sigmas: Doubles = np.sqrt(sums(np.square(depths, out=depths)) / count)
        return sigmas

    def draw(self, temperature: Doubles, uniforms: Doubles) -> Ints:
        """A token of each row by its weight among all tokens: first its column, then its lane."""
        weights = fold(self.weights(temperature))
        columns = running_sums(weights.sum(axis=1))
        target = uniforms * columns[:, -1]
        column = first_above(columns, target)
        row = np.arange(len(column))
        before = np.where(column > 0, columns[row, column - 1], 0.0)
        lane = first_above(running_sums(weights[row, :, column]), target - before)
        tokens: Ints = lane * self.n_columns + column
        return tokens

    def best_first(self, n: int) -> tuple[Ints, Doubles]:
        """The n best tokens of each row and their logits, best first; ties go to the lower id, -inf fills up."""
        if n >= self.n_vocab:
            ids = all_ids(self.logits)
            return ids, np.take_along_axis(self.logits, ids, axis=1).astype(np.float64)
        shape = len(self.logits), n
        ids = np.zeros(shape, np.int64)
        logits = np.full(shape, -np.inf)
        for i, floor in enumerate(self.floors(n)):
            row = self._padded[i]
            best = best_ids(row, max(floor, LOWEST), n)
            ids[i, : len(best)] = best
            logits[i, : len(best)] = row[best]
        return ids, logits

    def floors(self, n: int) -> Floats:
        """A logit per row that at least n tokens reach, and not many more."""
        # The n-th best column maximum has n tokens at or above it: one in each of n columns.
        sample = fold(self._padded).max(axis=1) if n < self.n_columns else self.logits
        at = sample.shape[1] - n
        return np.partition(sample, at, axis=1)[:, at]
