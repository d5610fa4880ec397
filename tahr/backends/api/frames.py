"""Inputs and outputs of steps that draw frames of codes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tahr.backends.api.tensors import Ints
from tahr.backends.sampling.code_draws import CodeDraws


@dataclass(frozen=True, slots=True)
class FrameInputs:
    """Arrays that steps of a model that speaks read and draw besides `StepInputs`.

    A frame is `n_codes` codes. Every token of a step may stand for a frame, whose codes are in `codes`; where there is
    none, they name a row of zeros. Of every logit row the step draws the codes of the next frame, code i by
    `draws[i]`. Between two of them the rows are tokens of `steps[i]`: a sequence of one more token each, in pages of
    `kv` that nothing outlives.
    """

    codes: Ints  # [n_codes, n_tokens]
    draws: Sequence[CodeDraws]
    steps: Sequence[Any]  # `StepInputs`
    kv: Any  # a `KVStore`

    @property
    def counts(self) -> Ints:
        """Numbers of tokens, rows and sequences of `steps`, which share them."""
        counts: Ints = self.steps[0].counts
        return counts

    def drawn(self) -> Ints:
        """The codes that the last step drew: [n_rows, n_codes]."""
        n = int(self.counts[0])
        return np.stack([draw.codes[:n] for draw in self.draws], axis=1)
