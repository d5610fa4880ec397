"""The native sampler: samples are shared out over the threads that also run the model."""

from typing import Any

import numpy as np

from tahr import _native as native
from tahr._native import address_of
from tahr.backends.sampling.sample_rows import (
    NOT_NUMBERS,
    NOTHING_LEFT,
    SAMPLE_ROW,
    Floats,
    Ints,
    LogitEdits,
    Logprobs,
    SampledTokens,
    SampleRows,
)

assert SAMPLE_ROW.itemsize == native.SAMPLE_ROW_BYTES
assert (native.NOT_NUMBERS, native.NOTHING_LEFT) == (NOT_NUMBERS, NOTHING_LEFT)


class Results:
    """Where some samples are read from and written to. It is kept: finding an address takes longer than using it."""

    def __init__(self, rows: SampleRows):
        self.params = rows.params
        self.source = rows.source
        self.sampled = SampledTokens(np.empty(len(rows), np.int32), np.empty(len(rows), np.float64))
        arrays = {"params": rows.params, "source": rows.source, **self.sampled._asdict()}
        addresses = {name: address_of(array) for name, array in arrays.items() if array is not None}
        counts = {"n_samples": len(rows), "n_vocab": rows.n_vocab}
        self.arguments: dict[str, Any] = {**addresses, **counts, "edits": (), "masks": ()}
        self.logits: Floats | None = None

    def read_from(self, logits: Floats) -> None:
        """Take samples from these rows, as long as they stay where they are."""
        self.logits = logits
        self.arguments |= layout(logits, self.arguments["n_vocab"])


class NativeSampler:
    """`Backend.sample` in one native call."""

    def __init__(self, isa: str, pool: native.Pool):
        self._isa = isa
        self._pool = pool
        self._results: Results | None = None

    def sample(self, logits: Floats, rows: SampleRows) -> SampledTokens:
        """Take the samples. The tokens are written over when the same rows are sampled again."""
        if not len(rows):
            return SampledTokens(np.zeros(0, np.int32), np.zeros(0))
        results = self._results
        if results is None or results.params is not rows.params:
            results = self._results = Results(rows)
        if logits is not results.logits:
            logits = plain(logits)
            results.read_from(logits)
        arguments = results.arguments
        if rows.edits is not None or rows.mask is not None:
            arguments = {**arguments, "edits": edit_addresses(rows.edits), "masks": mask_addresses(rows)}
        native.sample(self._isa, self._pool, **arguments)
        if rows.n_logprobs is None:
            return results.sampled
        tokens = np.maximum(results.sampled.tokens, 0)
        n_top = np.maximum(rows.n_logprobs, 0)
        return results.sampled._replace(logprobs=self.logprobs(logits, rows.n_vocab, rows.source, tokens, n_top))

    def logprobs(self, logits: Floats, n_vocab: int, source: Ints, tokens: Ints, n_top: Ints) -> Logprobs:
        """How likely tokens are, and the likeliest of each row."""
        n = len(tokens)
        width = int(n_top.max(initial=0))
        found = Logprobs(np.empty(n), np.empty((n, width), np.int32), np.empty((n, width)))
        logits = plain(logits)
        native.logprobs(
            self._isa,
            self._pool,
            **layout(logits, n_vocab),
            n_vocab=n_vocab,
            n_samples=n,
            source=address_of(source),
            tokens=address_of(tokens),
            n_top=address_of(n_top),
            width=width,
            logprobs=address_of(found.own),
            top_ids=address_of(found.ids),
            top_values=address_of(found.values),
        )
        return found


def edit_addresses(edits: LogitEdits | None) -> tuple[int, ...]:
    """Where the columns of the edits are; nothing without edits."""
    return () if edits is None else tuple(address_of(column) for column in edits)


def mask_addresses(rows: SampleRows) -> tuple[int, ...]:
    """Where the masks are and which rows have one; nothing without masks."""
    if rows.mask is None or rows.masked is None:
        return ()
    assert rows.mask.flags.c_contiguous and rows.mask.shape[1] == -(-rows.n_vocab // 32)
    return address_of(rows.mask), address_of(rows.masked)


def plain(logits: Floats) -> Floats:
    """Rows as the native code reads them: single precision, the numbers of a row side by side."""
    fine = logits.dtype == np.float32 and logits.strides[1] == logits.itemsize
    return logits if fine else np.ascontiguousarray(logits, np.float32)


def layout(logits: Floats, n_vocab: int) -> dict[str, Any]:
    """Where rows of logits are."""
    assert n_vocab <= logits.shape[1]
    return {"logits": address_of(logits), "stride": logits.strides[0] // 4, "n_rows": len(logits)}
