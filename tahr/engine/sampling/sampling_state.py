"""One request's part in the sampling of its tokens."""

import sys
from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from copy import copy
from functools import lru_cache
from math import log2, nan
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from tahr.backends.sampling.sample_rows import OFF, SAMPLE_ROW
from tahr.backends.sampling.uniform import key_of
from tahr.config import SamplingParams, precedence
from tahr.engine.sampling.dry import Resolve
from tahr.engine.sampling.edit_table import EditTable
from tahr.engine.sampling.logit_processors import LogitProcessors
from tahr.errors import ConfigError, TahrError
from tahr.grammar.state import GrammarState

ROW_VALUES = attrgetter(*OFF)
NEEDED = attrgetter("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "repeat_last_n", "max_tokens")
KEY_AT: int = SAMPLE_ROW.fields["key"][1]  # type: ignore[index]  # its place in a row, 8 bytes


class SamplingState:
    """Parameters, random numbers and memory of one request, so that its tokens never depend on its neighbours.

    Its random numbers are counted by the tokens generated so far: preempting, resuming or recomputing a request
    changes nothing. `index` tells the choices of one request (n > 1) apart.
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_tokens: Iterable[int] = (),  # min_tokens bans them
        resolve: Resolve | None = None,  # turns DRY's breakers from text to tokens: see `dry.breaker_finder`
        index: int = 0,
    ):
        self.params = complete(params)
        self.processors = LogitProcessors(self.params, eos_tokens, resolve)
        self.learns = bool(self.params.mirostat and self.params.temperature)
        self.n_logprobs = self.params.logprobs
        self.mu = 2 * self.params.mirostat_tau
        self.row = sample_row(self.params, index)
        self._highest = max((token for ids in self._named().values() for token in ids), default=0)

    def fork(self, index: int) -> "SamplingState":
        """The state of another choice that goes on from here by its own random numbers."""
        other = copy(self)
        other.row = sample_row(self.params, index)
        other.processors = self.processors.fork()
        return other

    @property
    def follows_text(self) -> bool:
        """Whether the next sample cannot be prepared before the token of the last one is known."""
        return self.learns or self.processors.follow_text

    def learn(self, probability: float) -> None:
        """Mirostat: move mu against the surprise of what was sampled."""
        if self.learns:
            self.mu -= self.params.mirostat_eta * (-log2(probability) - self.params.mirostat_tau)

    def check(self, n_vocab: int) -> None:
        """Refuse token ids the model does not have."""
        if self._highest < n_vocab:
            return
        name, ids = next((name, ids) for name, ids in self._named().items() if max(ids, default=0) >= n_vocab)
        raise ConfigError(f"{name} has token {max(ids)}, but the model's ids end at {n_vocab - 1}: take it out.")

    def _named(self) -> dict[str, Iterable[int]]:
        p = self.params
        return {"logit_bias": dict(p.logit_bias), **{name: getattr(p, name) for name in p.TOKEN_LISTS}}


def complete(params: SamplingParams) -> SamplingParams:
    """Parameters with every setting that sampling needs: those of a resolved request are so already."""
    return params if None not in NEEDED(params) else precedence(params)


def sample_row(params: SamplingParams, index: int) -> bytes:
    """A request as `Backend.sample` reads it; the counter and mirostat's mu are filled in at each step."""
    key = key_of(params.seed, index).to_bytes(8, sys.byteorder)
    row = keyless_row(ROW_VALUES(params))
    return row[:KEY_AT] + key + row[KEY_AT + 8 :]


@lru_cache(maxsize=256)
def keyless_row(values: tuple[float | None, ...]) -> bytes:
    """The row of all requests with these values of `OFF`, but for the key of their random numbers."""
    row = np.zeros((), SAMPLE_ROW)
    row["mirostat_mu"] = nan
    for (name, off), value in zip(OFF.items(), values, strict=True):
        row[name] = off if value is None else value
    return row.tobytes()


class SampleRequest:
    """A request that gets a token: sampling state, tokens so far, how many of them are the prompt, and grammar."""

    __slots__ = ("grammar", "is_plain", "n_prompt", "row", "sampling", "tokens")

    def __init__(
        self, sampling: SamplingState, tokens: ListOf[int], n_prompt: int, grammar: GrammarState | None = None
    ):
        self.sampling = sampling
        self.tokens = tokens
        self.n_prompt = n_prompt
        self.grammar = grammar
        self.row = sampling.row
        has_more = sampling.processors or sampling.learns or sampling.n_logprobs is not None or grammar
        self.is_plain = not has_more  # sampling depends on its row and its counter alone

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    def after(self, tokens: ListOf[int], grammar: GrammarState | None = None) -> "SampleRequest":
        """The request after these tokens, with its grammar in that state."""
        return SampleRequest(self.sampling, [*self.tokens, *tokens], self.n_prompt, grammar)

    def edits(self, n_ahead: int = 0) -> EditTable:
        """The logit edits for the next token, or for one after `n_ahead` that are being sampled."""
        return self.sampling.processors.edits(self.tokens, self.n_prompt, n_ahead)


class SampledToken(NamedTuple):
    """A token, how likely the model itself held it, and the likeliest tokens beside it."""

    token: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


Sample = int | SampledToken | TahrError  # a token, one with log-probabilities, or why there is none


def token_of(sampled: int | SampledToken) -> int:
    """The token itself."""
    return sampled if isinstance(sampled, int) else sampled.token
