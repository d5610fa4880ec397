"""The native row sampler: rows are shared out over the threads that also run the model."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tahr import _native as native
from tahr.backends.api import Doubles, Floats, Ints
from tahr.backends.cpu.memory import address_of
from tahr.backends.row_sampler import SAMPLE_ROW, RowEdits

assert SAMPLE_ROW.itemsize == native.SAMPLE_ROW_BYTES


class Slate:
    """Where the answers for some rows are written. It is kept: looking up an address takes longer than using it."""

    def __init__(self, rows: NDArray[np.void]):
        self.rows = rows
        self.tokens, self.probabilities = np.empty(len(rows), np.int32), np.empty(len(rows), np.float64)
        self.addresses = {name: address_of(getattr(self, name)) for name in ("rows", "tokens", "probabilities")}


class NativeSampler:
    """One native call per step."""

    NOT_NUMBERS, NOTHING_LEFT = native.NOT_NUMBERS, native.NOTHING_LEFT

    def __init__(self, isa: str, pool: native.Pool):
        self._isa = isa
        self._pool = pool
        self._slate = Slate(np.empty(0, SAMPLE_ROW))

    def sample(self, logits: Floats, rows: NDArray[np.void], edits: RowEdits | None) -> tuple[Ints, Doubles]:
        """A token for each row. What is given back is written over when the same rows are asked for again."""
        if self._slate.rows is not rows:
            self._slate = Slate(rows)
        slate = self._slate
        begins, ids, values, blank = (address_of(array) for array in edits) if edits else (0, 0, 0, 0)
        native.sample(
            self._isa,
            self._pool,
            **layout(logits, len(rows)),
            **slate.addresses,
            edit_begins=begins,
            edit_ids=ids,
            edit_values=values,
            blank=blank,
        )
        return slate.tokens, slate.probabilities

    def logprobs(self, logits: Floats, tokens: Sequence[int], n_top: Sequence[int]) -> tuple[Doubles, Ints, Doubles]:
        """How likely tokens are, and the likeliest of each row."""
        n, width = len(tokens), max(n_top)
        chosen, counts = np.array(tokens, np.int32), np.array(n_top, np.int32)
        own, ids, values = np.empty(n), np.empty((n, width), np.int32), np.empty((n, width))
        native.logprobs(
            self._isa,
            self._pool,
            **layout(logits, n),
            tokens=address_of(chosen),
            n_top=address_of(counts),
            width=width,
            logprobs=address_of(own),
            top_ids=address_of(ids),
            top_values=address_of(values),
        )
        return own, ids, values


def layout(logits: Floats, n_rows: int) -> dict[str, int]:
    """Where rows of logits are."""
    assert logits.dtype == np.float32 and logits.strides[1] == 4 and len(logits) == n_rows
    return {
        "logits": address_of(logits),
        "stride": logits.strides[0] // 4,
        "n_rows": n_rows,
        "n_vocab": logits.shape[1],
    }
