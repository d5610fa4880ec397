"""Codes that a step draws itself, one after the other: each is read by the ops behind it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tahr.backends.sampling.sample_rows import OFF, SAMPLE_ROW, Ints, LogitEdits


@dataclass(frozen=True, slots=True)
class CodeDraws:
    """How one code of every row of a step is drawn, and the results: arrays at fixed addresses, like those of
    `StepInputs`."""

    params: NDArray[np.void]  # [n_rows] of SAMPLE_ROW
    codes: Ints  # [n_rows]: a code, NOT_NUMBERS or NOTHING_LEFT
    ids: Ints  # likewise, with 0 in place of errors: ops that read them look at rows of tables
    edits: LogitEdits | None = None

    @staticmethod
    def empty(n_rows: int, n_edits: int = 0) -> "CodeDraws":
        """Arrays for so many rows, and for so many edits of each."""
        params = np.zeros(n_rows, SAMPLE_ROW)
        params["mirostat_mu"] = np.nan
        for name, value in OFF.items():
            params[name] = value
        codes, ids = np.zeros((2, n_rows), np.int32)
        return CodeDraws(params, codes, ids, no_edits(n_rows, n_rows * n_edits) if n_edits else None)


def no_edits(n_rows: int, n_edits: int) -> LogitEdits:
    """Memory for edits; no row has any yet."""
    before, penalty, after = np.zeros((3, n_edits), np.float32)
    begins = np.zeros(n_rows + 1, np.int64)
    return LogitEdits(begins, np.zeros(n_edits, np.int32), before, penalty, after, np.zeros(n_rows, np.bool_))
