"""Byte-pair encoding: join the best pair of neighbours until none can be joined.

GGUF files hold what this needs almost as it is, so building takes no more than two dictionaries.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence

from tahr.text.tokens.cancellation import check_cancelled

Rank = Callable[[str, str], float | None]  # priority of joining two neighbours; None: they do not join

_MAX_CACHED_WORDS = 50_000
_MAX_CACHED_LETTERS = 32  # longer words rarely come twice
# Merging takes some hundred bytes for each letter. Longer words are of no language; they are merged in parts.
MAX_WORD = 1 << 16


class MergeModel:
    """Words to ids by merging letters: the pair of lowest rank first, and of equal ones the leftmost."""

    def __init__(
        self,
        ids: Mapping[str, int],
        rank: Rank,
        *,
        whole_words: bool = False,
        unknown: Callable[[str], Sequence[int]],
    ) -> None:
        self._ids = ids
        self._rank = rank
        self._whole_words = whole_words
        self._unknown = unknown
        self._cache: dict[str, list[int]] = {}

    def encode(self, words: Sequence[str]) -> list[int]:
        """The ids of these words, one after the other."""
        out: list[int] = []
        for word in words:
            out += self._cache.get(word) or self._word(word)
        return out

    def _word(self, word: str) -> list[int]:
        if self._whole_words and word in self._ids:
            found = [self._ids[word]]
        else:
            parts = _bounded(word)
            merged = {part: self._part(part) for part in dict.fromkeys(parts)}  # a megabyte of spaces has equal parts
            found = [token for part in parts for token in merged[part]]
        if len(word) <= _MAX_CACHED_LETTERS:
            if len(self._cache) >= _MAX_CACHED_WORDS:
                self._cache.clear()
            self._cache[word] = found
        return found

    def _part(self, part: str) -> list[int]:
        check_cancelled()
        return [token for symbol in self._merge(part) for token in self._lookup(symbol)]

    def _lookup(self, symbol: str) -> Sequence[int]:
        token = self._ids.get(symbol)
        return self._unknown(symbol) if token is None else (token,)

    def _merge(self, word: str) -> list[str]:
        symbols: list[str] = list(word)  # "" once merged into the one on its left
        n = len(symbols)
        before = list(range(-1, n - 1))
        after = list(range(1, n + 1))
        waiting: list[tuple[float, int, str, str]] = []

        def offer(left: int, right: int) -> None:
            rank = self._rank(symbols[left], symbols[right])
            if rank is not None:
                heapq.heappush(waiting, (rank, left, symbols[left], symbols[right]))

        for i in range(n - 1):
            offer(i, i + 1)
        while waiting:
            _, left, first, second = heapq.heappop(waiting)
            right = after[left]
            # A pair offered before one of its halves grew is out of date.
            if right >= n or symbols[left] != first or symbols[right] != second:
                continue
            symbols[left] = first + second
            symbols[right] = ""
            after[left] = following = after[right]
            if following < n:
                before[following] = left
                offer(left, following)
            if before[left] >= 0:
                offer(before[left], left)
        return [symbol for symbol in symbols if symbol]


def _bounded(word: str) -> Sequence[str]:
    return (word,) if len(word) <= MAX_WORD else [word[at : at + MAX_WORD] for at in range(0, len(word), MAX_WORD)]
