"""The text of one sequence as an array, and what followed its last tokens when they stood in it before."""

from collections.abc import Sequence as ListOf

import numpy as np

from tahr.backends.api import Ints

# tokens that must agree, and that are looked at
MIN_MATCH = 2
MAX_MATCH = 8
GUESSES_PER_MATCH = 3  # a longer match carries further


class TokenBuffer:
    """The text of one sequence as an array that grows with it."""

    def __init__(self) -> None:
        self._tokens: Ints = np.empty(0, np.int32)
        self._n = 0

    def follow(self, tokens: ListOf[int]) -> None:
        """Hold these tokens, which begin with those it holds."""
        if len(tokens) > len(self._tokens):
            grown = np.empty(max(1024, 2 * len(tokens)), np.int32)
            grown[: self._n] = self._tokens[: self._n]
            self._tokens = grown
        self._tokens[self._n : len(tokens)] = tokens[self._n :]
        self._n = len(tokens)

    def continuation(self, n_most: int) -> list[int]:
        """The continuation of the longest earlier repeat of the last tokens, the latest of several; [] without one."""
        text = self._tokens[: self._n]
        if self._n <= MIN_MATCH or n_most < 1:
            return []
        ends = np.flatnonzero(text[:-1] == text[-1])
        n_match = 1
        while len(ends) and n_match < MAX_MATCH:
            going = ends[ends >= n_match]
            going = going[text[going - n_match] == text[-1 - n_match]]
            if not len(going):
                break
            ends = going
            n_match = n_match + 1
        if not len(ends) or n_match < MIN_MATCH:
            return []
        # A repeat that overlaps the end of the text goes on and on: so does the guess.
        following: list[int] = np.resize(text[ends[-1] + 1 :], min(n_most, GUESSES_PER_MATCH * n_match)).tolist()
        return following
