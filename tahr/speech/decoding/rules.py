"""Which tokens may follow: a mask over a row of logits that depends on the tokens of the window so far."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tahr.speech.decoding.tokens import SpeechTokens

Row = NDArray[np.float32]
NEVER = np.float32(-np.inf)


def allowed_logits(logits: Row, written: Sequence[int], tokens: SpeechTokens, has_times: bool) -> Row:
    """A copy of the logits in which tokens that may not come next are -inf."""
    row = logits[: tokens.n_vocab].copy()
    row[tokens.suppressed] = NEVER
    if not written:
        row[tokens.suppressed_first] = NEVER
    if has_times:
        mask_times(row, written, tokens)
    return row


def mask_times(row: Row, written: Sequence[int], tokens: SpeechTokens) -> None:
    """Times come in pairs around text, never go back, and begin the window; a time is due where times together are
    likelier than any text."""
    first = tokens.first_time
    row[tokens.no_times] = NEVER
    if not written:
        row[:first] = NEVER
        row[first + tokens.max_first_time + 1 :] = NEVER
        return
    after_time = tokens.is_time(written[-1])
    after_pair = after_time and (len(written) < 2 or tokens.is_time(written[-2]))
    if after_pair:
        row[first:] = NEVER
    elif after_time:
        row[: tokens.end] = NEVER
    last = next((token for token in reversed(written) if tokens.is_time(token)), None)
    if last is not None:
        # A segment that has begun may end where it begins only as the end of what came before it.
        row[first : last if after_time and not after_pair else last + 1] = NEVER
    if log_sum(row[first:]) > row[:first].max():
        row[:first] = NEVER


def log_sum(values: Row) -> float:
    top = values.max()
    if top == NEVER:
        return float(NEVER)
    return float(top + np.log(np.exp(values - top).sum(dtype=np.float64)))


def log_probabilities(row: Row) -> Row:
    found: Row = row - np.float32(log_sum(row))
    return found
