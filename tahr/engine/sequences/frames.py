"""The frames of a sequence of a model that speaks, and how the next one is drawn."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tahr.backends.api import Ints
from tahr.backends.sampling.code_draws import CodeDraws
from tahr.backends.sampling.uniform import key_of
from tahr.executor.protocol import FrameFacts

NOT_BEFORE = -np.inf


@dataclass(frozen=True, slots=True)
class CodeSampling:
    """How a code is drawn; a temperature of 0 takes the likeliest."""

    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class FrameSampling:
    """How frames are drawn."""

    first: CodeSampling = CodeSampling()
    others: CodeSampling = CodeSampling()
    repetition_penalty: float = 1.05  # penalty on first codes that were drawn before
    least_frames: int = 2  # frames before the end may come
    seed: int | None = None


class Frames:
    """Codes by token: those of frames in the prompt, and those that were drawn."""

    def __init__(self, facts: FrameFacts, prompt: Ints, sampling: FrameSampling):
        self.facts = facts
        self.sampling = sampling
        self.n_drawn = 0
        self._codes = np.array(prompt, np.int32)  # [n_tokens, n_codes], with memory for more behind them
        self._n = len(prompt)
        self._key = key_of(sampling.seed, 0)
        self._seen: dict[int, None] = {}  # first codes that were drawn

    @staticmethod
    def no_frame(facts: FrameFacts) -> Ints:
        """Codes of a token without a frame."""
        return np.array([facts.no_first, *[facts.no_other] * (facts.n_codes - 1)], np.int32)

    def append(self, codes: Sequence[int]) -> None:
        """Take the frame that was drawn, as that of the next token."""
        if self._n == len(self._codes):
            self._codes = np.concatenate([self._codes, np.zeros_like(self._codes)])
        self._codes[self._n] = codes
        self._n += 1
        self.n_drawn += 1
        self._seen[int(codes[0])] = None

    def drawn(self, begin: int = 0) -> Ints:
        """Frames that were drawn, from one of them on: [n, n_codes]."""
        first = self._n - self.n_drawn + begin
        found: Ints = self._codes[first : self._n]
        return found

    def between(self, begin: int, end: int) -> Ints:
        """Codes of some tokens: [n, n_codes]."""
        assert end <= self._n, "a token has its codes before it is computed"
        found: Ints = self._codes[begin:end]
        return found

    def choose_by(self, draws: Sequence[CodeDraws], row: int) -> None:
        """Write how the codes of the next frame are drawn from a row of a step."""
        n_codes = self.facts.n_codes
        for i, draw in enumerate(draws):
            of = self.sampling.others if i else self.sampling.first
            params = draw.params[row]
            params["key"] = self._key
            params["counter"] = self.n_drawn * n_codes + i
            params["temperature"] = of.temperature
            params["top_k"] = of.top_k
            params["top_p"] = of.top_p

    def edit(self, draw: CodeDraws, row: int) -> None:
        """Write which first codes are less likely, behind the edits of the row before."""
        edits = draw.edits
        assert edits
        begin = int(edits.begins[row])
        ends_later = self.n_drawn < self.sampling.least_frames
        ids = [*self._seen, *([self.facts.n_sounds] if ends_later else ())]
        end = begin + len(ids)
        edits.ids[begin:end] = ids
        edits.penalty[begin:end] = self.sampling.repetition_penalty
        edits.before[begin:end] = 0
        edits.before[end - ends_later : end] = NOT_BEFORE
        edits.begins[row + 1] = end
