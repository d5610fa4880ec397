"""The way to a token by a backend's row sampler: requests become rows of numbers, and edits become lists of changes."""

from collections.abc import Sequence as ListOf

import numpy as np
from numpy.typing import NDArray

from tahr.backends.row_sampler import SAMPLE_ROW, RowEdits, RowSampler
from tahr.engine.sampling.numpy_sampler import none_left
from tahr.engine.sampling.rows import Floats, not_numbers
from tahr.engine.sampling.sampling_state import SampledToken, SampleRequest
from tahr.engine.sampling.sparse_logits import SparseLogits, row_edits
from tahr.errors import TahrError

UNCHANGED = (np.zeros(0, np.int64), np.zeros(0, np.float32), False)


class Crowd:
    """Requests that pick together, and what need not be found out again while they do."""

    def __init__(self, requests: ListOf[SampleRequest]):
        states = [request.sampling for request in requests]
        self.requests = list(requests)
        self.rows = np.frombuffer(bytearray().join([sampling.row for sampling in states]), SAMPLE_ROW)
        self.edited = any(sampling.edits for sampling in states)
        self.learners = [i for i, sampling in enumerate(states) if sampling.learns]

    def next_rows(self) -> NDArray[np.void]:
        """How each next token is picked: all but this was settled when the requests came in."""
        self.rows["n_picked"] = [len(request.tokens) - request.n_prompt for request in self.requests]
        for i in self.learners:
            self.rows["mirostat_mu"][i] = self.requests[i].sampling.mu
        return self.rows


class HostSampler:
    """Picks with a row sampler."""

    def __init__(self, sampler: RowSampler):
        self._sampler = sampler
        self._overlay = SparseLogits(0)
        self._crowd: Crowd | None = None

    def tokens(self, requests: ListOf[SampleRequest], logits: Floats) -> ListOf[int | TahrError]:
        """The next token of each request, or why there is none."""
        crowd, logits = self._crowd, plain(logits)
        if crowd is None or crowd.requests != requests:
            crowd = self._crowd = Crowd(requests)
        edits = self._edits(requests, logits) if crowd.edited else None
        picked, probabilities = self._sampler.sample(logits, crowd.next_rows(), edits)
        tokens: list[int] = picked.tolist()
        for i in crowd.learners:
            if tokens[i] >= 0:
                requests[i].sampling.learn(probabilities[i])
        return tokens if min(tokens) >= 0 else [self._judged(*each) for each in zip(requests, tokens, strict=True)]

    def _judged(self, request: SampleRequest, token: int) -> int | TahrError:
        if token >= 0:
            return token
        return none_left() if token == self._sampler.NOTHING_LEFT and request.sampling.edits else not_numbers()

    def logprobs(self, logits: Floats, tokens: ListOf[int], n_tops: ListOf[int]) -> list[SampledToken | TahrError]:
        """Each token with its log-probability by its row, and the likeliest tokens of that row."""
        own, ids, values = (array.tolist() for array in self._sampler.logprobs(plain(logits), tokens, n_tops))
        return [
            not_numbers() if own[i] != own[i] else SampledToken(token, own[i], best(ids[i], values[i], n_tops[i]))
            for i, token in enumerate(tokens)
        ]

    def _edits(self, requests: ListOf[SampleRequest], logits: Floats) -> RowEdits:
        if len(self._overlay) != logits.shape[1]:
            self._overlay = SparseLogits(logits.shape[1])
        return row_edits([self._changes(request, row) for request, row in zip(requests, logits, strict=True)])

    def _changes(self, request: SampleRequest, row: Floats) -> tuple[NDArray[np.int64], Floats, bool]:
        if not request.sampling.edits:
            return UNCHANGED
        self._overlay.begin(row)
        for edit in request.sampling.edits:
            edit(self._overlay, request.tokens, request.n_prompt)
        return self._overlay.edits()


def plain(logits: Floats) -> Floats:
    """Rows as a row sampler reads them: single precision, the numbers of a row side by side."""
    fine = logits.dtype == np.float32 and logits.strides[1] == logits.itemsize
    return logits if fine else np.ascontiguousarray(logits, np.float32)


def best(ids: list[int], values: list[float], n: int) -> tuple[tuple[int, float], ...]:
    """The n likeliest tokens of a row; fewer, if there are no more."""
    return tuple((token, value) for token, value in zip(ids[:n], values, strict=False) if token >= 0)
