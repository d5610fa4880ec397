"""Arguments and results of `Backend.sample`: plain arrays, so that any device can read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Flags = NDArray[np.bool_]
Words = NDArray[np.uint32]

NOT_NUMBERS = -1  # instead of a token: there is a NaN or +inf among the logits of the row
NOTHING_LEFT = -2  # instead of a token: every logit of the row is -inf

# The parameters of a row in the order in which the stages use them, with the value that switches each off.
OFF = {
    "temperature": 1.0,  # 0 takes the best token
    "top_n_sigma": 0.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.0,
    "typical_p": 1.0,
    "top_a": 0.0,
    "eta_cutoff": 0.0,
    "top_k": 0.0,
    "min_p": 0.0,
    "top_p": 1.0,
}
# How one token is sampled: native/sampling/sampling.h has the same fields in the same order. `counter` is the number of
# tokens the request has sampled: its random numbers are counted by it. `mirostat_mu` is NaN without mirostat.
SAMPLE_ROW = np.dtype(
    [("key", np.uint64), ("counter", np.uint64), ("mirostat_mu", np.float64), *((name, np.float64) for name in OFF)]
)


def words(n: int, n_words: int) -> Words:
    """Memory for masks."""
    return np.empty((n, n_words), np.uint32)


class LogitEdits(NamedTuple):
    """Changes to single logits that do not depend on their values: row i has those from begins[i] to begins[i + 1].

    value = logit + before; then value / penalty if value > 0, else value * penalty; then value + after, all in f32. An
    -inf in `before` or `after` bans the token whatever its logit is. An id occurs at most once in a row; ids that the
    vocabulary does not have are ignored. In a `blank` row every token without an edit is banned.
    """

    begins: NDArray[np.int64]
    ids: Ints
    before: Floats
    penalty: Floats
    after: Floats
    blank: Flags  # [n]

    def of(self, row: int) -> tuple[Ints, Floats, Floats, Floats]:
        """The ids of a row, with before, penalty and after."""
        at = slice(self.begins[row], self.begins[row + 1])
        return self.ids[at], self.before[at], self.penalty[at], self.after[at]

    def apply(self, row: int, logits: Floats) -> None:
        """Change the logits of a row in place."""
        ids, before, penalty, after = self.of(row)
        known = ids < len(logits)
        ids = ids[known]
        before = before[known]
        penalty = penalty[known]
        after = after[known]
        values = logits[ids] + before
        values = np.where(values > 0, values / penalty, values * penalty) + after
        values[np.isneginf(before) | np.isneginf(after)] = -np.inf
        if self.blank[row]:
            logits[:] = -np.inf
        logits[ids] = values

    def take(self, rows: Sequence[int]) -> "LogitEdits":
        """The edits of some rows."""
        parts = [self.of(row) for row in rows]
        return joined_edits(parts, self.blank[list(rows)])


def joined_edits(parts: Sequence[tuple[Ints, Floats, Floats, Floats]], blank: Flags) -> LogitEdits:
    """Edits of rows, one after the other."""
    begins = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part[0]) for part in parts], out=begins[1:])
    ids, before, penalty, after = (np.concatenate(column) for column in zip(*parts, strict=True))
    return LogitEdits(begins, ids, before, penalty, after, blank)


@dataclass(frozen=True, slots=True, eq=False)
class SampleRows:
    """Samples to take: sample i is taken from row `source[i]` of the logits, by `params[i]`.

    Several samples may share a row. Only the first `n_vocab` logits of a row are tokens.
    """

    source: Ints  # [n]
    params: NDArray[np.void]  # [n] of SAMPLE_ROW
    n_vocab: int
    slots: Ints  # [n]: the token slots that samples go to, where later steps find them; 0 belongs to nobody
    edits: LogitEdits | None = None
    mask: Words | None = None  # [n, ceil(n_vocab / 32)]: bit t % 32 of word t // 32 allows token t; after the edits
    masked: Flags | None = None  # [n]: the rows whose mask counts
    n_logprobs: Ints | None = None  # [n]: how many of the likeliest tokens to list with log-probabilities; -1: none

    def __len__(self) -> int:
        return len(self.source)

    def take(self, rows: Sequence[int]) -> "SampleRows":
        """Some of the samples."""
        at = list(rows)
        return SampleRows(
            self.source[at],
            self.params[at],
            self.n_vocab,
            self.slots[at],
            self.edits and self.edits.take(at),
            None if self.mask is None else self.mask[at],
            None if self.masked is None else self.masked[at],
            None if self.n_logprobs is None else self.n_logprobs[at],
        )


class Logprobs(NamedTuple):
    """Log-probabilities by the model's own logits, before any edit or stage."""

    own: Doubles  # [n]: of the token asked for; NaN where the logits are not numbers
    ids: Ints  # [n, width]: the likeliest tokens, best first; -1 where there are no more
    values: Doubles  # [n, width]


class SampledTokens(NamedTuple):
    """Results of some samples."""

    tokens: Ints  # [n]: a token, NOT_NUMBERS or NOTHING_LEFT
    probabilities: Doubles  # [n]: what each token had when it was drawn, for mirostat
    logprobs: Logprobs | None = None  # None: no row lists any


class Sampled(Protocol):
    """Samples under way."""

    def collect(self) -> SampledTokens:
        """Wait for the tokens. They may be overwritten once the next samples are collected."""


@dataclass(slots=True)
class SampledAtOnce:
    """Samples that were taken where they were asked for."""

    result: SampledTokens

    def collect(self) -> SampledTokens:
        return self.result
