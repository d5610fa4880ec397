"""The logit edits of one request, changed in place as its text grows."""

from collections.abc import Iterable

import numpy as np

from tahr.backends.sampling.sample_rows import Floats, Ints

NEUTRAL = (0.0, 1.0, 0.0)  # no change: before, penalty, after


class EditTable:
    """Columns of `LogitEdits` for one row: each token at most once.

    A table with `only` holds edits of these tokens alone, and all other tokens are banned.
    """

    def __init__(self, only: Iterable[int] = ()):
        self._at: dict[int, int] = {}
        self._ids: Ints = np.empty(0, np.int32)
        self._values: Floats = np.empty((len(NEUTRAL), 0), np.float32)
        self._blank = False
        for token in only:
            self._add(token)
        self._blank = bool(self._at)

    @property
    def blank(self) -> bool:
        return self._blank

    @property
    def columns(self) -> tuple[Ints, Floats, Floats, Floats]:
        """ids, before, penalty and after; views that the next change may write over."""
        n = len(self._at)
        before, penalty, after = self._values[:, :n]
        return self._ids[:n], before, penalty, after

    def bias(self, token: int, value: float) -> None:
        """Add to a logit before penalties; -inf bans the token."""
        self._set(0, token, value)

    def penalise(self, token: int, penalty: float) -> None:
        """Divide a positive logit by a penalty, multiply a negative one."""
        self._set(1, token, penalty)

    def shift(self, token: int, value: float) -> None:
        """Add to a logit after penalties."""
        self._set(2, token, value)

    def _set(self, column: int, token: int, value: float) -> None:
        at = self._at.get(token, -1)
        if at < 0:
            if self._blank:
                return  # the token is banned already
            at = self._add(token)
        self._values[column, at] = value

    def _add(self, token: int) -> int:
        at = self._at[token] = len(self._at)
        if at == len(self._ids):
            more = max(16, at)
            self._ids = np.concatenate([self._ids, np.zeros(more, np.int32)])
            fresh = np.tile(np.array(NEUTRAL, np.float32)[:, None], more)
            self._values = np.concatenate([self._values, fresh], axis=1)
        self._ids[at] = token
        return at
