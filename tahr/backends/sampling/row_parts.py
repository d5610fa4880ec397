"""Rows of logits in parts that stay in the processor's cache, edited and masked."""

from collections.abc import Iterator

import numpy as np

from tahr.backends.sampling.lanes import Floats, Ints, spans
from tahr.backends.sampling.logit_rows import LogitRows
from tahr.backends.sampling.sample_rows import NOT_NUMBERS, NOTHING_LEFT, SampleRows


def parts(logits: Floats, rows: SampleRows) -> Iterator[tuple[SampleRows, LogitRows]]:
    """A few rows at a time, edited and masked."""
    at_once = spans(len(rows), rows.n_vocab)
    held = LogitRows(len(rows.source[at_once[0]]), rows.n_vocab)
    for at in at_once:
        part = rows.take(range(*at.indices(len(rows))))
        held.load(logits[part.source, : rows.n_vocab])
        for i in range(len(part)):
            if part.edits:
                held.edit(i, part.edits)
            if part.mask is not None and part.masked is not None and part.masked[i]:
                held.mask(i, part.mask[i])
        held.settle()
        yield part, held


def with_errors(tokens: Ints, held: LogitRows) -> Ints:
    errors = errors_of(held)
    return np.where(errors < 0, errors, tokens)


def errors_of(held: LogitRows) -> Ints:
    """The error code of each row that has no best token; 0 for the others."""
    return np.where(held.unusable, np.where(np.isneginf(held.top), NOTHING_LEFT, NOT_NUMBERS), 0)
