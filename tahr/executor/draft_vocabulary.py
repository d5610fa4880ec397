"""Logits of a drafter that may guess some of its model's tokens only, as logits of all of them."""

import numpy as np

from tahr.backends.api import Floats, Ints


class DraftVocabulary:
    """The token of each logit. What it never guesses is minus infinity, and stays so from step to step."""

    def __init__(self, tokens: Ints, n_logits: int):
        self._tokens = tokens
        self._rows: Floats = np.full((0, n_logits), -np.inf, np.float32)

    def spread(self, logits: Floats) -> Floats:
        """These rows with a logit for every token of the model; they are written over by the next ones."""
        if len(self._rows) < len(logits):
            self._rows = np.full((len(logits), self._rows.shape[1]), -np.inf, np.float32)
        rows = self._rows[: len(logits)]
        rows[:, self._tokens] = logits
        return rows
