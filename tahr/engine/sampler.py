"""Picks the next tokens of a step. All that belongs to a request lives in its `Picker`; `pick` serves many at once.

The chain, in order: logit bias, bans, allowed tokens, repetition / presence / frequency penalties, DRY (`edits`), then
top-n-sigma, XTC, typical-p, top-a, eta, temperature, top-k, min-p, top-p (`stages`), then a draw. Mirostat takes the
place of all truncation. At temperature 0 only the edits matter, and the best token is taken.
"""

from collections.abc import Iterator
from collections.abc import Sequence as ListOf

import numpy as np

from tahr.engine.sampling.logprobs import logprobs
from tahr.engine.sampling.picker import Pick, Picker, PickRequest
from tahr.engine.sampling.rows import Floats
from tahr.engine.sampling.stages import Chain
from tahr.engine.sampling.ways import pick_group
from tahr.errors import TahrError

__all__ = ["Pick", "PickRequest", "Picker", "logprobs_of", "pick"]


def pick(requests: ListOf[PickRequest], logits: Floats) -> list[Pick | TahrError]:
    """The next token of each request from its row of logits [n, n_vocab], which stays as it is.

    What is wrong with one request is its own answer, never an exception: the others get their tokens.
    """
    answers = [refusal(request.picker, logits.shape[1]) for request in requests]
    with np.errstate(over="ignore"):  # what a tiny temperature or penalty sends to infinity is meant to go there
        for chain, edited, at in groups(requests, answers):
            rows = logits if len(at) == len(requests) else logits[at]
            for i, answer in zip(at, pick_group([requests[i] for i in at], rows, chain, edited), strict=True):
                answers[i] = answer
        return finished(requests, answers, logits)


def logprobs_of(row: Floats, token: int, n_top: int) -> Pick:
    """How likely the model held a token by its row of logits, and its n_top likeliest, before any edit or stage."""
    (answer,) = logprobs(row[None], [token], [n_top])
    if isinstance(answer, TahrError):
        raise answer
    return answer


def refusal(picker: Picker, n_vocab: int) -> int | TahrError | None:
    try:
        picker.check(n_vocab)
    except TahrError as error:
        return error
    return None


def groups(
    requests: ListOf[PickRequest], answers: ListOf[int | TahrError | None]
) -> Iterator[tuple[Chain, bool, list[int]]]:
    """Requests without an answer yet that take the same way, as (chain, whether there are edits, their places)."""
    found: dict[tuple[Chain, bool], list[int]] = {}
    for i, request in enumerate(requests):
        if answers[i] is None:
            found.setdefault((request.picker.chain, bool(request.picker.edits)), []).append(i)
    for (chain, edited), at in found.items():
        yield chain, edited, at


def finished(
    requests: ListOf[PickRequest], answers: ListOf[int | TahrError | None], logits: Floats
) -> list[Pick | TahrError]:
    """The tokens, with logprobs beside them where they were asked for."""
    picks = [answer if isinstance(answer, TahrError) else Pick(answer or 0) for answer in answers]
    wanted = {
        i: (answered.token, n_top)
        for i, (request, answered) in enumerate(zip(requests, picks, strict=True))
        if (n_top := request.picker.params.logprobs) is not None and isinstance(answered, Pick)
    }
    if wanted:
        tokens, n_tops = zip(*wanted.values(), strict=True)
        for i, answer in zip(wanted, logprobs(logits[list(wanted)], tokens, n_tops), strict=True):
            picks[i] = answer
    return picks
