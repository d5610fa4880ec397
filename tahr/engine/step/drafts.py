"""Verification: which guesses are what the sequence would have sampled anyway.

Row i of a sequence with drafts is sampled with the random number of its token, as if the drafts before it were the
sequence's own. As long as they agree with the samples, they were: so the tokens that come out are those that come out
without speculation, whatever was guessed, and their distribution is the request's.
"""

from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from typing import NamedTuple

from tahr.engine.sampling.sampling_state import Sample, SampleRequest, token_of
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.step.draft_grammars import grammar_after
from tahr.errors import TahrError

Drafts = Mapping[int, ListOf[int]]  # drafts by the id of the sequence


class AcceptedTokens(NamedTuple):
    """Samples of a step that count: one for each token that a sequence gets, in order."""

    sampled: list[Sequence]
    tokens: ListOf[Sample]
    accepted: dict[int, int]  # accepted drafts by the id of each sequence with drafts


def drafted_request(seq: Sequence, n: int) -> SampleRequest:
    """The request of the row after the first n drafts: what follows the text takes them for its own."""
    request = seq.reply.request
    drafts = seq.ahead.drafts[:n]
    assert request
    if not drafts or not (request.sampling.follows_text or request.grammar):
        return request
    return request.after(drafts, grammar_after(seq, n))


def verify(sampled: ListOf[Sequence], tokens: ListOf[Sample], drafts: Drafts) -> AcceptedTokens:
    """Keep the samples up to the first that differs from its draft: that one is right, what comes after it is not."""
    kept: list[Sequence] = []
    found: list[Sample] = []
    accepted: dict[int, int] = {}
    at = 0
    while at < len(sampled):
        seq = sampled[at]
        guesses = drafts.get(seq.id, ())
        n_right = count_right(guesses, tokens[at : at + len(guesses)])
        if guesses:
            accepted[seq.id] = n_right
        kept += [seq] * (1 + n_right)
        found += tokens[at : at + 1 + n_right]
        at += 1 + len(guesses)
    return AcceptedTokens(kept, found, accepted)


def count_right(guesses: ListOf[int], tokens: ListOf[Sample]) -> int:
    """How many guesses, from the first on, are what was sampled."""
    n = 0
    for guess, sampled in zip(guesses, tokens, strict=True):
        if isinstance(sampled, TahrError) or token_of(sampled) != guess:
            break
        n += 1
    return n
