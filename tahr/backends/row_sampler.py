"""Picking tokens from rows of logits on the host: what a backend may offer to do faster than NumPy.

What the numbers mean is said by `engine.sampling`, which does the same in NumPy; both pick the same tokens, but for a
random number that falls within rounding of the border between two.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tahr.backends.api.tensors import Doubles, Floats, Ints

KNOBS = (
    *("temperature", "top_n_sigma", "xtc_probability", "xtc_threshold", "typical_p", "top_a", "eta_cutoff"),
    *("top_k", "min_p", "top_p"),
)
# How the token of one row is picked: native/sampling/sampling.h has the same fields in the same order.
SAMPLE_ROW = np.dtype(
    [("key", np.uint64), ("n_picked", np.uint64), ("mirostat_mu", np.float64), *((knob, np.float64) for knob in KNOBS)]
)


class RowEdits(NamedTuple):
    """Logits that are not what the model said: row i has `values` at `ids` from `begins[i]` to `begins[i + 1]`."""

    begins: NDArray[np.int64]
    ids: Ints
    values: Floats
    blank: NDArray[np.bool_]  # rows that begin as -inf everywhere


class RowSampler(Protocol):
    """Works on each row alone: a row gives the same token in any batch."""

    NOT_NUMBERS: int  # instead of a token: there is a NaN or an infinity in the row
    NOTHING_LEFT: int  # instead of a token: every logit is -inf

    def sample(self, logits: Floats, rows: NDArray[np.void], edits: RowEdits | None) -> tuple[Ints, Doubles]:
        """A token for each row, by its `SAMPLE_ROW`, and the probability it had when it was drawn.

        Both are to be read before the next call, which may write over them.
        """

    def logprobs(self, logits: Floats, tokens: Sequence[int], n_top: Sequence[int]) -> tuple[Doubles, Ints, Doubles]:
        """The log-probability of a token of each row, NaN where logits are not numbers, then the ids and the
        log-probabilities of its likeliest ones; ids are -1 where there are no more."""
