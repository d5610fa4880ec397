"""How strongly the tokens of a text look at each moment of their window."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
N_MEDIAN = 7  # rows of which the middle one counts


@dataclass(frozen=True, slots=True, eq=False)
class Looks:
    """Queries of a text's tokens and keys of its window's rows, for the heads that follow the speech."""

    queries: Floats  # [n_heads, n_tokens, head_dim]
    keys: Floats  # [n_heads, n_rows, head_dim]
    scale: float
    probabilities: Floats  # probabilities of tokens that are text

    def weights(self, n_rows: int) -> Iterator[Floats]:
        """Attention of each head to the first rows: [n_tokens, n_rows]."""
        for queries, keys in zip(self.queries, self.keys, strict=True):
            scores = queries @ keys[:n_rows].T * np.float32(self.scale)
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            yield scores / scores.sum(axis=1, keepdims=True)


def alignment_of(looks: Looks, n_rows: int) -> Floats:
    """The mean of all heads, each by how much more a token looks at a row than others do: [n_tokens, n_rows]."""
    n_tokens = looks.queries.shape[1]
    n_seen = min(n_rows, looks.keys.shape[1])
    total: Floats = np.zeros((n_tokens, n_seen), np.float32)
    for weights in looks.weights(n_rows):
        deviation = weights.std(axis=0, keepdims=True)
        normed = (weights - weights.mean(axis=0, keepdims=True)) / np.where(deviation > 0, deviation, 1)
        total += median_filtered(normed)
    found: Floats = np.nan_to_num(total / np.float32(len(looks.queries)))
    return found


def median_filtered(rows: Floats) -> Floats:
    """The median of `N_MEDIAN` neighbours along each row, which is mirrored at its ends."""
    side = N_MEDIAN // 2
    if rows.shape[1] <= side:
        return rows
    padded = np.pad(rows, ((0, 0), (side, side)), mode="reflect")
    n = rows.shape[1]
    kept = [padded[:, i : i + n] for i in range(N_MEDIAN)]
    while len(kept) > 1:  # the least and the largest leave, one pair after the other
        kept = without_ends(kept)
    return kept[0]


def without_ends(columns: list[Floats]) -> list[Floats]:
    """The columns without the least and the largest number of each place; others may change theirs."""
    rest: list[Floats] = []
    least = largest = columns[0]
    for i, column in enumerate(columns[1:]):
        if i == 0:
            least, largest = np.minimum(least, column), np.maximum(largest, column)
            continue
        middle = np.maximum(least, column)
        least = np.minimum(least, column)
        rest.append(np.minimum(largest, middle))
        largest = np.maximum(largest, middle)
    return rest


def first_rows(alignment: Floats) -> NDArray[np.int64]:
    """The first row of each token, on the way through tokens and rows that goes back in neither and gains the most."""
    costs = -alignment.astype(np.float64)
    n_tokens, n_rows = costs.shape
    steps = steps_of(costs)
    found = np.zeros(n_tokens, np.int64)
    i, j = n_tokens, n_rows
    while i > 0 and j > 0:
        found[i - 1] = j - 1
        step = steps[i + j, i]
        i -= step != ROW
        j -= step != TOKEN
    return found


BOTH, TOKEN, ROW = 0, 1, 2  # steps of the way: to the next token and row, or to either alone


def steps_of(costs: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The cheapest last step to each place: [i + j, i] for the first i tokens and j rows.

    Places of one sum i + j depend on those of the two sums before alone, and are computed together.
    """
    n_tokens, n_rows = costs.shape
    flat = costs.reshape(-1)
    apart = np.arange(n_tokens) * (n_rows - 1)
    steps = np.zeros((n_tokens + n_rows + 1, n_tokens + 1), np.uint8)
    before = np.full(n_tokens + 1, np.inf, np.float32)  # sums of costs, by i, where i + j is one less
    before_that = before.copy()
    before_that[0] = 0
    for total in range(2, n_tokens + n_rows + 1):
        first = max(1, total - n_rows)
        last = min(n_tokens, total - 1)
        both, token, row = before_that[first - 1 : last], before[first - 1 : last], before[first : last + 1]
        least = np.minimum(token, row)
        is_both = both < least
        now = np.full(n_tokens + 1, np.inf, np.float32)
        here = flat[(first - 1) * n_rows + total - first - 1 + apart[: last + 1 - first]]
        now[first : last + 1] = here + np.where(is_both, both, np.where((token < both) & (token < row), token, row))
        steps[total, first : last + 1] = np.where(is_both, BOTH, np.where((token < both) & (token < row), TOKEN, ROW))
        before_that = before
        before = now
    return steps
