"""DRY: a penalty for tokens that would prolong a repeat of earlier text, growing with the length of the repeat."""

import math
from array import array
from collections.abc import Callable, Iterable
from collections.abc import Sequence as ListOf
from functools import cache

import numpy as np

from tahr.backends.sampling.lanes import Ints
from tahr.config import SamplingParams

CEILING = 1e4  # no logit outweighs such a penalty, so longer repeats need not be told apart

Resolve = Callable[[str], Iterable[ListOf[int]]]


def breaker_finder(vocab: Iterable[tuple[int, bytes]], encode: Callable[[str], list[int]]) -> Resolve:
    """How the texts in `dry_sequence_breakers` become tokens: those that contain the text, or else its encoding."""
    known = list(vocab)

    @cache
    def find(text: str) -> list[tuple[int, ...]]:
        wanted = text.encode()
        return [(token,) for token, piece in known if wanted in piece] or [tuple(encode(text))]

    return find


class Dry:
    """The penalties of one request."""

    def __init__(self, params: SamplingParams, breakers: Iterable[ListOf[int]]):
        self.multiplier = params.dry_multiplier or 0.0
        self.base = params.dry_base
        self.allowed = params.dry_allowed_length
        self.last_n = params.dry_penalty_last_n
        self.longest = self.allowed + self._useful_extra()
        self.breakers: dict[int, list[tuple[int, ...]]] = {}
        for sequence in breakers:
            self.breakers.setdefault(sequence[-1], []).append(tuple(sequence))

    def _useful_extra(self) -> int:
        if self.base == 1 or self.multiplier >= CEILING:
            return 0
        return math.ceil(
            (math.log(CEILING) - math.log(self.multiplier)) / math.log(self.base)
        )  # 1e4 / 5e-324 overflows

    def penalties(self, tokens: ListOf[int]) -> dict[int, float]:
        """Penalties of tokens that would prolong a repeat: multiplier * base ** (length - allowed length)."""
        window = tokens if self.last_n < 0 else tokens[max(0, len(tokens) - self.last_n) :]
        reach = min(self._reach(window), self.longest)
        if reach < self.allowed:
            return {}
        following, lengths = repeats(np.frombuffer(array("q", window), np.int64), reach)
        order = np.argsort(lengths)  # the longest of several repeats before one token counts: it comes last
        order = order[np.count_nonzero(lengths < self.allowed) :]
        hit = following[order]
        longest = lengths[order]
        penalty = np.minimum(self.multiplier * float(self.base) ** (longest - self.allowed), CEILING)
        penalty[[self._breaks(token) for token in hit.tolist()]] = 0  # the way out of a repeat stays free
        return dict(zip(hit.tolist(), penalty.tolist(), strict=True))

    def _breaks(self, token: int) -> bool:
        return (token,) in self.breakers.get(token, ())

    def _reach(self, window: ListOf[int]) -> int:
        """How many tokens stand after the last breaker, as far as it matters: a repeat does not reach across one."""
        for n in range(min(len(window), self.longest)):
            end = len(window) - n
            for breaker in self.breakers.get(window[end - 1], ()):
                if tuple(window[max(0, end - len(breaker)) : end]) == breaker:
                    return n
        return min(len(window), self.longest)


def repeats(window: Ints, reach: int) -> tuple[Ints, Ints]:
    """The token after each earlier place that ends like the window does, and how many tokens, up to reach, agree."""
    ends = np.flatnonzero(window[:-1] == window[-1])
    lengths = np.ones(len(ends), np.int64)
    going = np.arange(len(ends))
    for depth in range(1, reach):
        going = going[ends[going] >= depth]
        going = going[window[ends[going] - depth] == window[-1 - depth]]
        if not len(going):
            break
        lengths[going] += 1
    return window[ends + 1], lengths
