"""Logit processors, in their fixed order: bias, bans, penalties, min_tokens, DRY. They hold for greedy requests too.

A processor keeps the `EditTable` of its request up to date: it is told of the tokens that have come since it was last
called, so that a long text costs no more per token than a short one. Edits never depend on logits, so any device can
apply them.
"""

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from typing import Protocol

import numpy as np

from tahr.config import SamplingParams
from tahr.engine.sampling.dry import Dry, Resolve
from tahr.engine.sampling.edit_table import EditTable
from tahr.errors import ConfigError


class LogitProcessor(Protocol):
    """Keeps some edits of one request up to date."""

    def update(self, table: EditTable, tokens: ListOf[int], n_prompt: int, n_seen: int) -> None:
        """Change the table as the tokens from `n_seen` on demand; the first `n_prompt` tokens are the prompt."""


class RepetitionPenalty:
    """Positive logits divided, negative multiplied, once per distinct token of the window."""

    def __init__(self, penalty: float, window: int):
        self._penalty = float(np.float32(penalty))
        self._window = window  # negative: the whole text
        self._counts: dict[int, int] = {}

    def update(self, table: EditTable, tokens: ListOf[int], n_prompt: int, n_seen: int) -> None:
        if self._window < 0:
            for token in set(tokens[n_seen:]):
                table.penalise(token, self._penalty)
            return
        begin = max(0, n_seen - self._window)
        end = max(0, len(tokens) - self._window)
        entering = tokens[max(n_seen, end) :]
        leaving = tokens[begin : min(end, n_seen)]
        counts = self._counts
        for token in entering:
            counts[token] = counts.get(token, 0) + 1
        for token in leaving:
            counts[token] -= 1
        for token in {*entering, *leaving}:
            table.penalise(token, self._penalty if counts[token] else 1.0)
            if not counts[token]:
                del counts[token]


class PresenceAndFrequency:
    """Takes the presence penalty once and the frequency penalty each time a token was generated; DRY comes on top."""

    def __init__(self, presence: float, frequency: float, dry: Dry | None):
        self._presence = np.float32(presence)
        self._frequency = np.float32(frequency)
        self._counts: dict[int, int] = {}
        self._dry = dry
        self._repeated: dict[int, float] = {}  # current penalties of DRY

    def update(self, table: EditTable, tokens: ListOf[int], n_prompt: int, n_seen: int) -> None:
        generated = tokens[max(n_seen, n_prompt) :]
        counts = self._counts
        changed = set(generated)
        for token in generated:
            counts[token] = counts.get(token, 0) + 1
        if self._dry:
            changed |= self._repeated.keys()
            self._repeated = self._dry.penalties(tokens)
            changed |= self._repeated.keys()
        for token in changed:
            times = counts.get(token, 0)
            counted = self._presence + self._frequency * np.float32(times) if times else np.float32(0)
            table.shift(token, float(-counted - np.float32(self._repeated.get(token, 0.0))))


class MinTokens:
    """Bans what would end the request before it has min_tokens."""

    def __init__(self, ends: Iterable[int], min_tokens: int, before: dict[int, float]):
        self._before = {token: before.get(token, 0.0) for token in ends}  # values for them afterwards
        self._min_tokens = min_tokens

    def update(self, table: EditTable, n_generated: int) -> None:
        for token, before in self._before.items():
            table.bias(token, -np.inf if n_generated < self._min_tokens else before)


class LogitProcessors:
    """The logit processors of a request and where they stand in its text."""

    def __init__(self, params: SamplingParams, eos_tokens: Iterable[int], resolve: Resolve | None):
        self._params = params
        self._dry = Dry(params, breakers_of(params, resolve)) if params.dry_multiplier else None
        self._before = {**dict(params.logit_bias), **dict.fromkeys(params.banned_tokens, -np.inf)}
        self._min_tokens = (
            MinTokens({*eos_tokens, *params.stop_token_ids}, params.min_tokens, self._before)
            if params.min_tokens
            else None
        )
        self._n_seen = self._last = 0
        self._restart()

    def fork(self) -> "LogitProcessors":
        """A copy for another text."""
        other = object.__new__(LogitProcessors)
        other.__dict__.update(self.__dict__)
        other._restart()
        return other

    def __bool__(self) -> bool:
        return bool(self._before or self._updating or self._min_tokens or self._params.allowed_tokens)

    @property
    def follow_text(self) -> bool:
        """Whether edits depend on which tokens came before, not only on how many."""
        return bool(self._updating)

    def edits(self, tokens: ListOf[int], n_prompt: int, n_ahead: int = 0) -> EditTable:
        """The edits for the token after these, and after `n_ahead` more that are not known yet."""
        gone_back = len(tokens) < self._n_seen or (self._n_seen and tokens[self._n_seen - 1] != self._last)
        if gone_back:
            self._restart()
        for processor in self._updating:
            processor.update(self._table, tokens, n_prompt, self._n_seen)
        if self._min_tokens:
            self._min_tokens.update(self._table, len(tokens) - n_prompt + n_ahead)
        self._n_seen = len(tokens)
        self._last = tokens[-1] if tokens else 0
        return self._table

    def _restart(self) -> None:
        p = self._params
        self._n_seen = 0
        self._table = EditTable(p.allowed_tokens)
        self._updating: list[LogitProcessor] = []
        for token, value in self._before.items():
            self._table.bias(token, value)
        if (p.repetition_penalty or 1) != 1 and p.repeat_last_n:
            self._updating.append(RepetitionPenalty(p.repetition_penalty or 1, p.repeat_last_n))
        if p.presence_penalty or p.frequency_penalty or self._dry:
            counted = PresenceAndFrequency(p.presence_penalty or 0.0, p.frequency_penalty or 0.0, self._dry)
            self._updating.append(counted)


def breakers_of(params: SamplingParams, resolve: Resolve | None) -> list[ListOf[int]]:
    """DRY's sequence breakers as tokens."""
    found: list[ListOf[int]] = []
    for breaker in params.dry_sequence_breakers:
        if not isinstance(breaker, str):
            found.append(breaker)
        elif resolve is None:
            raise ConfigError(
                f"dry_sequence_breakers holds the text {breaker!r}, but there is no tokenizer here: give token ids."
            )
        else:
            found.extend(resolve(breaker))
    return found
