"""What one request brings to the picking of its tokens."""

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from copy import copy
from dataclasses import dataclass
from math import log2
from typing import NamedTuple

import numpy as np

from tahr.backends.row_sampler import SAMPLE_ROW
from tahr.config import SamplingParams, precedence
from tahr.engine.sampling.dry import Resolve
from tahr.engine.sampling.logit_processors import edits_of
from tahr.engine.sampling.stages import MIROSTAT, STAGES, chain_of
from tahr.engine.sampling.uniform import key_of, uniform
from tahr.errors import ConfigError


class SamplingState:
    """Parameters, random numbers and memory of one request, so that its picks never depend on its neighbours.

    Its random numbers are counted by the tokens generated so far: preempting, resuming or recomputing a request
    changes nothing. `index` tells the answers of one request (n > 1) apart.
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_tokens: Iterable[int] = (),  # min_tokens keeps them away
        resolve: Resolve | None = None,  # turns DRY's breakers from text to tokens: see `dry.breaker_finder`
        index: int = 0,
    ):
        self.params = precedence(params)
        self.edits = edits_of(self.params, eos_tokens, resolve)
        self.chain = chain_of(self.params)
        self.learns = self.chain[-1:] == (MIROSTAT,)
        self.n_logprobs = self.params.logprobs
        self.mu = 2 * self.params.mirostat_tau
        self._set_key(index)
        self._highest = max((token for ids in self._named().values() for token in ids), default=0)

    def fork(self, index: int) -> "SamplingState":
        """A sampling for another answer that goes on from here by its own random numbers."""
        other = copy(self)
        other._set_key(index)
        return other

    def _set_key(self, index: int) -> None:
        self._key = key_of(self.params.seed, index)
        self.row = sample_row(self.params, self._key)

    def chances(self, n_generated: int) -> tuple[float, float]:
        """The two random numbers of a pick."""
        return uniform(self._key, 2 * n_generated), uniform(self._key, 2 * n_generated + 1)

    def learn(self, probability: float) -> None:
        """Mirostat: move mu against the surprise of what was picked."""
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


def sample_row(params: SamplingParams, key: int) -> bytes:
    """A request as a backend's row sampler reads it; how much it has picked is filled in at each step."""
    row = np.zeros((), SAMPLE_ROW)
    row["key"], row["mirostat_mu"], row["xtc_threshold"] = key, np.nan, params.xtc_threshold
    for stage in STAGES:
        row[stage.knob] = stage.off if (value := getattr(params, stage.knob)) is None else value
    return row.tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class SampleRequest:
    """Who wants a token: its sampling, all tokens so far, and how many of them are the prompt."""

    sampling: SamplingState
    tokens: ListOf[int]
    n_prompt: int


class SampledToken(NamedTuple):
    """A picked token; with logprobs asked for, also how likely the model itself held it and the likeliest tokens."""

    token: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
