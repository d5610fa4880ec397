"""Samples the next tokens of a step. What belongs to a request lives in its `SamplingState`; a `Sampler` serves many.

The chain, in order: logit bias, bans, allowed tokens, repetition / presence / frequency penalties, DRY (logit
processors), the mask of a grammar, then top-n-sigma, XTC, typical-p, top-a, eta, temperature, top-k, min-p, top-p
(stages), then a draw. Mirostat takes the place of all truncation. At temperature 0 only the logit processors and the
mask matter, and the best token is taken. `backends.sampling` says what each stage means.
"""

from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from typing import NamedTuple

import numpy as np

from tahr.backends.sampling.sample_rows import (
    NOTHING_LEFT,
    Floats,
    Logprobs,
    SampledTokens,
    SampleRows,
    Words,
    words,
)
from tahr.engine.sampling.sample_batch import SampleBatch
from tahr.engine.sampling.sampling_state import Sample, SampledToken, SampleRequest
from tahr.errors import GenerateError, TahrError
from tahr.executor.protocol import Executor
from tahr.grammar.masks import MaskFiller

NO_ERRORS: Mapping[int, TahrError] = {}


class ReadyBatch(NamedTuple):
    """A batch whose masks are filled: the rows to sample, and the requests whose grammar cannot go on."""

    batch: SampleBatch
    rows: SampleRows
    errors: Mapping[int, TahrError]

    @property
    def host_bound(self) -> ListOf[int]:
        """The places whose tokens no step may refer to before they are collected."""
        return self.batch.host_bound

    def results(self, sampled: SampledTokens) -> ListOf[Sample]:
        """The token of each request. What is wrong with one is its own answer, never an exception."""
        tokens, probabilities, logprobs = sampled
        found: list[int] = tokens.tolist()
        for i in self.batch.learners:
            if found[i] >= 0:
                self.batch.requests[i].sampling.learn(probabilities[i])
        if logprobs is None and not self.errors and (not found or min(found) >= 0):
            return found
        return [self._result(i, token, logprobs) for i, token in enumerate(found)]

    def _result(self, i: int, token: int, logprobs: Logprobs | None) -> Sample:
        if i in self.errors:
            return self.errors[i]
        request = self.batch.requests[i]
        sampling = request.sampling
        if token < 0:
            is_banned = token == NOTHING_LEFT and (sampling.processors or request.grammar)
            return nothing_left(request) if is_banned else not_numbers()
        if logprobs is None or sampling.n_logprobs is None:
            return token
        return scored(token, i, logprobs, sampling.n_logprobs)


class Sampler:
    """Makes the rows that an executor samples for requests, and reads what comes back."""

    def __init__(self, executor: Executor, n_vocab: int, is_draft: bool = False):
        self._executor = executor
        self._n_vocab = n_vocab
        self._is_draft = is_draft  # nobody sees its log-probabilities
        self._batch: SampleBatch | None = None
        self.filler = MaskFiller()
        self._memory = [words(0, 0), words(0, 0)]  # memory of masks

    def prepare(self, requests: ListOf[SampleRequest], source: ListOf[int]) -> SampleBatch:
        """Begin what does not need the logits: the masks of grammars. Request i takes row `source[i]`."""
        batch = self.batch(requests, source)
        if batch.has_masks:
            batch.begin_masks(self.filler)
        return batch

    def batch(self, requests: ListOf[SampleRequest], source: ListOf[int]) -> SampleBatch:
        """Make the batch without its masks, for a caller that begins them."""
        batch = self._batch
        if batch is None or not batch.holds(requests, source):
            batch = SampleBatch(requests, source, self._n_vocab, self._is_draft, self._mask_memory)
            batch.host_bound = self._executor.host_samples(batch.rows)
            self._batch = batch
        if batch.has_masks:
            batch.finish_masks()  # left by a step that failed before it sampled
        return batch

    def _mask_memory(self, n: int, n_words: int) -> Words:
        """Memory for the masks of a batch. The batch before the last one has been sampled, so its memory is free."""
        self._memory.reverse()
        if len(self._memory[0]) < n:
            self._memory[0] = self._executor.mask_memory(max(n, 2 * len(self._memory[0])), n_words)
        return self._memory[0][:n]

    def finish(
        self, batch: SampleBatch, lengths: ListOf[int] | None = None, slots: ListOf[int] | None = None
    ) -> ReadyBatch:
        """A prepared batch, ready to be sampled.

        `lengths` says how many tokens come before the next one in each text, where some of them are being sampled
        already; such a request must not be one whose sampling `follows_text`, or that has a grammar. `slots` are the
        token slots that samples go to.
        """
        errors = batch.finish_masks() if batch.has_masks else NO_ERRORS
        return ReadyBatch(batch, batch.next_rows(lengths, slots), errors)

    def sample(
        self, requests: ListOf[SampleRequest], logits: Floats, source: ListOf[int] | None = None
    ) -> list[SampledToken | TahrError]:
        """The next token of each request, from logits that are on the host; without a source, request i takes row i."""
        if not requests:
            return []
        batch = self.prepare(requests, list(range(len(requests))) if source is None else source)
        ready = self.finish(batch)
        found = ready.results(self._executor.sample_host_rows(logits, ready.rows))
        return [SampledToken(each) if isinstance(each, int) else each for each in found]

    def logprobs_of(
        self, logits: Floats, source: ListOf[int], tokens: ListOf[int], n_top: int
    ) -> list[SampledToken | TahrError]:
        """How likely the model held tokens by its rows of logits, and the likeliest of each row."""
        if not tokens:
            return []
        counts = np.full(len(tokens), n_top, np.int32)
        found = self._executor.logprobs(
            logits, self._n_vocab, np.array(source, np.int32), np.array(tokens, np.int32), counts
        )
        return [scored(token, i, found, n_top) for i, token in enumerate(tokens)]


def scored(token: int, row: int, logprobs: Logprobs, n_top: int) -> SampledToken | TahrError:
    """A token with its log-probability and the likeliest tokens beside it."""
    own = logprobs.own[row]
    ids = logprobs.ids[row, :n_top].tolist()
    values = logprobs.values[row].tolist()
    if own != own:
        return not_numbers()
    top = tuple((best, value) for best, value in zip(ids, values, strict=False) if best >= 0)
    return SampledToken(token, float(own), top)


def not_numbers() -> GenerateError:
    return GenerateError("The model produced logits that are not numbers, so this request cannot go on.")


def nothing_left(request: SampleRequest) -> GenerateError:
    if request.grammar:
        return GenerateError(
            "No token is left that the grammar allows: loosen banned_tokens, allowed_tokens, logit_bias or min_tokens, "
            "or the grammar."
        )
    return GenerateError("Every token is banned: loosen banned_tokens, allowed_tokens or min_tokens.")
