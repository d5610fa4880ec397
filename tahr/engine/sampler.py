"""Picks the next tokens of a step. What belongs to a request lives in its `Picker`; a `Sampler` serves many at once.

The chain, in order: logit bias, bans, allowed tokens, repetition / presence / frequency penalties, DRY (`edits`), then
top-n-sigma, XTC, typical-p, top-a, eta, temperature, top-k, min-p, top-p (`stages`), then a draw. Mirostat takes the
place of all truncation. At temperature 0 only the edits matter, and the best token is taken.
"""

from collections.abc import Sequence as ListOf

from tahr.backends.row_sampler import RowSampler
from tahr.engine.sampling.native_sampler import QuickWay
from tahr.engine.sampling.numpy_sampler import NumpyWay
from tahr.engine.sampling.rows import Floats
from tahr.engine.sampling.sampling_state import Pick, Picker, PickRequest
from tahr.errors import TahrError

__all__ = ["Pick", "PickRequest", "Picker", "Sampler"]


class Sampler:
    """Picks by a backend's row sampler, or in NumPy if it has none. Both pick the same."""

    def __init__(self, rows: RowSampler | None = None):
        self._way = QuickWay(rows) if rows else NumpyWay()

    def pick(self, requests: ListOf[PickRequest], logits: Floats) -> list[Pick | TahrError]:
        """The next token of each request from its row of logits [n, n_vocab], which stays as it is.

        What is wrong with one request is its own answer, never an exception: the others get their tokens.
        """
        if not requests:
            return []
        answers = self._way.tokens(requests, logits)
        picks = [answer if isinstance(answer, TahrError) else Pick(answer) for answer in answers]
        wanted = {i: n for i, request in enumerate(requests) if (n := request.picker.n_logprobs) is not None}
        return self._with_logprobs(picks, wanted, logits) if wanted else picks

    def logprobs_of(self, row: Floats, token: int, n_top: int) -> Pick:
        """How likely the model held a token by its row of logits, and its likeliest, before any edit or stage."""
        (answer,) = self._way.logprobs(row[None], [token], [n_top])
        if isinstance(answer, TahrError):
            raise answer
        return answer

    def _with_logprobs(
        self, picks: list[Pick | TahrError], wanted: dict[int, int], logits: Floats
    ) -> list[Pick | TahrError]:
        """Logprobs beside the tokens at some places, with so many of the likeliest."""
        tokens = {i: picked.token for i in wanted if isinstance(picked := picks[i], Pick)}
        if tokens:
            rows = logits if len(tokens) == len(logits) else logits[list(tokens)]
            found = self._way.logprobs(rows, list(tokens.values()), [wanted[i] for i in tokens])
            for i, answer in zip(tokens, found, strict=True):
                picks[i] = answer
        return picks
