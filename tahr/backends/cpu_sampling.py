"""The native row sampler: rows are shared out over the threads that also run the model."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tahr import _native as native
from tahr.backends.api import Doubles, Floats, Ints
from tahr.backends.row_sampler import SAMPLE_ROW, RowEdits

assert SAMPLE_ROW.itemsize == native.SAMPLE_ROW_BYTES


class NativeSampler:
    """One native call per step."""

    NOT_NUMBERS, NOTHING_LEFT = native.NOT_NUMBERS, native.NOTHING_LEFT

    def __init__(self, isa: str, pool: native.Pool):
        self._isa = isa
        self._pool = pool

    def sample(self, logits: Floats, rows: NDArray[np.void], edits: RowEdits | None) -> tuple[Ints, Doubles]:
        """A token for each row."""
        tokens, probabilities = np.empty(len(rows), np.int32), np.empty(len(rows), np.float64)
        begins, ids, values, blank = (array.ctypes.data for array in edits) if edits else (0, 0, 0, 0)
        native.sample(
            self._isa,
            self._pool,
            **layout(logits, len(rows)),
            rows=rows.ctypes.data,
            edit_begins=begins,
            edit_ids=ids,
            edit_values=values,
            blank=blank,
            tokens=tokens.ctypes.data,
            probabilities=probabilities.ctypes.data,
        )
        return tokens, probabilities

    def logprobs(self, logits: Floats, tokens: Sequence[int], n_top: Sequence[int]) -> tuple[Doubles, Ints, Doubles]:
        """How likely tokens are, and the likeliest of each row."""
        n, width = len(tokens), max(n_top)
        chosen, counts = np.array(tokens, np.int32), np.array(n_top, np.int32)
        own, ids, values = np.empty(n), np.empty((n, width), np.int32), np.empty((n, width))
        native.logprobs(
            self._isa,
            self._pool,
            **layout(logits, n),
            tokens=chosen.ctypes.data,
            n_top=counts.ctypes.data,
            width=width,
            logprobs=own.ctypes.data,
            top_ids=ids.ctypes.data,
            top_values=values.ctypes.data,
        )
        return own, ids, values


def layout(logits: Floats, n_rows: int) -> dict[str, int]:
    """Where rows of logits are."""
    assert logits.dtype == np.float32 and logits.strides[1] == 4 and len(logits) == n_rows
    return {
        "logits": logits.ctypes.data,
        "stride": logits.strides[0] // 4,
        "n_rows": n_rows,
        "n_vocab": logits.shape[1],
    }
