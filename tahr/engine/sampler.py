"""Samples the next tokens of a step. What belongs to a request lives in its `SamplingState`; a `Sampler` serves many.

The chain, in order: logit bias, bans, allowed tokens, repetition / presence / frequency penalties, DRY (`edits`), then
top-n-sigma, XTC, typical-p, top-a, eta, temperature, top-k, min-p, top-p (`stages`), then a draw. Mirostat takes the
place of all truncation. At temperature 0 only the edits matter, and the best token is taken.
"""

from collections.abc import Sequence as ListOf

from tahr.backends.row_sampler import RowSampler
from tahr.engine.sampling.native_sampler import HostSampler
from tahr.engine.sampling.numpy_sampler import NumpySampler
from tahr.engine.sampling.rows import Floats
from tahr.engine.sampling.sampling_state import SampledToken, SampleRequest, SamplingState
from tahr.errors import TahrError

__all__ = ["SampleRequest", "SampledToken", "Sampler", "SamplingState"]


class Sampler:
    """Picks by a backend's row sampler, or in NumPy if it has none. Both pick the same."""

    def __init__(self, rows: RowSampler | None = None):
        self._way = HostSampler(rows) if rows else NumpySampler()

    def sample(self, requests: ListOf[SampleRequest], logits: Floats) -> list[SampledToken | TahrError]:
        """The next token of each request from its row of logits [n, n_vocab], which stays as it is.

        What is wrong with one request is its own answer, never an exception: the others get their tokens.
        """
        if not requests:
            return []
        answers = self._way.tokens(requests, logits)
        picks = [answer if isinstance(answer, TahrError) else SampledToken(answer) for answer in answers]
        wanted = {i: n for i, request in enumerate(requests) if (n := request.sampling.n_logprobs) is not None}
        return self._with_logprobs(picks, wanted, logits) if wanted else picks

    def logprobs_of(self, row: Floats, token: int, n_top: int) -> SampledToken:
        """How likely the model held a token by its row of logits, and its likeliest, before any edit or stage."""
        (answer,) = self._way.logprobs(row[None], [token], [n_top])
        if isinstance(answer, TahrError):
            raise answer
        return answer

    def _with_logprobs(
        self, picks: list[SampledToken | TahrError], wanted: dict[int, int], logits: Floats
    ) -> list[SampledToken | TahrError]:
        """Logprobs beside the tokens at some places, with so many of the likeliest."""
        tokens = {i: picked.token for i in wanted if isinstance(picked := picks[i], SampledToken)}
        if tokens:
            rows = logits if len(tokens) == len(logits) else logits[list(tokens)]
            found = self._way.logprobs(rows, list(tokens.values()), [wanted[i] for i in tokens])
            for i, answer in zip(tokens, found, strict=True):
                picks[i] = answer
        return picks
