"""The ways to a token: take the best, draw from all, or run the stages on a short list and draw from what is left."""

from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

import numpy as np

from tahr.engine.sampling.candidates import Candidates
from tahr.engine.sampling.logprobs import logprobs
from tahr.engine.sampling.rows import Doubles, Floats, Ints, Rows, not_numbers, spans
from tahr.engine.sampling.sampling_state import SampledToken, SampleRequest
from tahr.engine.sampling.stages import DRAW_FROM_ALL, FACTS, TAKE_BEST, Chain, facts_of
from tahr.errors import GenerateError, TahrError

WIDTHS = (256, 8192)  # how long lists are before they hold the whole vocabulary: the choice almost always lies within


class NumpySampler:
    """Picks in NumPy: what to read to know what is meant, and what a backend's own way is tested against."""

    def tokens(self, requests: ListOf[SampleRequest], logits: Floats) -> list[int | TahrError]:
        """The next token of each request, or why there is none."""
        answers: list[int | TahrError] = [0] * len(requests)
        with np.errstate(over="ignore"):  # what a tiny temperature or penalty sends to infinity is meant to go there
            for (chain, edited), at in groups(requests).items():
                rows = logits if len(at) == len(requests) else logits[at]
                for i, answer in zip(at, pick_group([requests[i] for i in at], rows, chain, edited), strict=True):
                    answers[i] = answer
        return answers

    def logprobs(self, logits: Floats, tokens: ListOf[int], n_tops: ListOf[int]) -> list[SampledToken | TahrError]:
        """Each token with its log-probability by its row, and the likeliest tokens of that row."""
        return logprobs(logits, tokens, n_tops)


def groups(requests: ListOf[SampleRequest]) -> dict[tuple[Chain, bool], list[int]]:
    """Places of the requests that take the same way: the same chain, with edits or without."""
    found: dict[tuple[Chain, bool], list[int]] = {}
    for i, request in enumerate(requests):
        found.setdefault((request.sampling.chain, bool(request.sampling.edits)), []).append(i)
    return found


def pick_group(requests: list[SampleRequest], logits: Floats, chain: Chain, edited: bool) -> list[int | TahrError]:
    if chain == TAKE_BEST and not edited:
        best = logits.argmax(axis=1)
        fine = np.isfinite(logits[np.arange(len(best)), best])
        return [token if ok else not_numbers() for token, ok in zip(best.tolist(), fine.tolist(), strict=True)]
    if chain in (TAKE_BEST, DRAW_FROM_ALL):
        take = best_tokens if chain == TAKE_BEST else drawn_tokens
        return [
            error or token
            for some, rows in parts(requests, logits)
            for error, token in zip(errors_of(some, rows), take(some, rows).tolist(), strict=True)
        ]
    return from_lists(requests, logits, chain, widths_for(logits.shape[1]))


def widths_for(n_vocab: int) -> tuple[int, ...]:
    """List lengths to try; a list of half the vocabulary saves nothing over one of all."""
    return (*(width for width in WIDTHS if 2 * width < n_vocab), n_vocab)


def from_lists(
    requests: list[SampleRequest], logits: Floats, chain: Chain, widths: ListOf[int]
) -> list[int | TahrError]:
    """Run the stages on short lists; where these do not settle it, on longer ones."""
    answers: list[int | TahrError] = []
    unsure: list[int] = []
    for at in spans(len(requests), widths[0]):
        some, unsettled = from_short_lists(requests[at], logits[at], chain, widths[0])
        unsure += [len(answers) + i for i in unsettled]
        answers += some
    if unsure:
        again = from_lists([requests[i] for i in unsure], logits[unsure], chain, widths[1:])
        for i, answer in zip(unsure, again, strict=True):
            answers[i] = answer
    return answers


def from_short_lists(
    requests: list[SampleRequest], logits: Floats, chain: Chain, width: int
) -> tuple[list[int | TahrError], list[int]]:
    """Answers by lists of that width, and the places of those that are not sure."""
    listed = [listing(some, rows, facts_of(chain), width) for some, rows in parts(requests, logits)]
    errors = [error for each in listed for error in each.errors]
    s = joined(listed, requests, logits.shape[1])
    with np.errstate(invalid="ignore", divide="ignore"):  # a row that is not sure may hold anything
        for stage in chain:
            stage.apply(s)
        tokens, probabilities = s.draw()
    unsure = [i for i in np.flatnonzero(s.unsure).tolist() if errors[i] is None]
    for i in np.flatnonzero(~s.unsure).tolist():
        if errors[i] is None:
            requests[i].sampling.learn(probabilities[i])
    return [error or token for error, token in zip(errors, tokens.tolist(), strict=True)], unsure


@dataclass(frozen=True, slots=True)
class Listing:
    """What is taken from a part of the rows before they are let go."""

    ids: Ints
    logits: Doubles
    facts: dict[str, Doubles]
    errors: list[TahrError | None]


def listing(requests: list[SampleRequest], rows: Rows, facts: tuple[str, ...], width: int) -> Listing:
    temperature = temperatures(requests)
    known = {name: FACTS[name](rows, temperature) for name in facts}
    return Listing(*rows.best_first(width), known, errors_of(requests, rows))


def joined(listed: list[Listing], requests: list[SampleRequest], n_vocab: int) -> Candidates:
    return Candidates(
        np.concatenate([each.ids for each in listed]),
        np.concatenate([each.logits for each in listed]),
        n_vocab,
        [request.sampling.params for request in requests],
        {name: np.concatenate([each.facts[name] for each in listed]) for name in listed[0].facts},
        np.array([request.sampling.mu for request in requests]),
        chances(requests),
    )


def parts(requests: list[SampleRequest], logits: Floats) -> Iterator[tuple[list[SampleRequest], Rows]]:
    """A few rows at a time, edited."""
    at_once = spans(len(requests), logits.shape[1])
    rows = Rows(len(requests[at_once[0]]), logits.shape[1])
    for at in at_once:
        rows.load(logits[at])
        for row, request in zip(rows.logits, requests[at], strict=True):
            for edit in request.sampling.edits:
                edit(row, request.tokens, request.n_prompt)
        rows.settle()
        yield requests[at], rows


def best_tokens(requests: list[SampleRequest], rows: Rows) -> Ints:
    return rows.best


def drawn_tokens(requests: list[SampleRequest], rows: Rows) -> Ints:
    return rows.draw(temperatures(requests), chances(requests)[:, 1])


def errors_of(requests: list[SampleRequest], rows: Rows) -> list[TahrError | None]:
    """What is wrong with each row: there is no best token in it."""
    errors: list[TahrError | None] = [None] * len(requests)
    for i in np.flatnonzero(rows.unusable):
        banned = requests[i].sampling.edits and np.isneginf(rows.top[i])
        errors[i] = none_left() if banned else not_numbers()
    return errors


def temperatures(requests: list[SampleRequest]) -> Doubles:
    return np.array([request.sampling.params.temperature for request in requests], np.float64)


def chances(requests: list[SampleRequest]) -> Doubles:
    return np.array([r.sampling.chances(len(r.tokens) - r.n_prompt) for r in requests])


def none_left() -> GenerateError:
    return GenerateError("Every token is banned: loosen banned_tokens, allowed_tokens or min_tokens.")
