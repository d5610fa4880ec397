"""`Backend.sample` in NumPy: what to read to know what is meant, and what every backend is tested against.

A row takes the best token, draws from all tokens, or runs the stages on its best candidates and draws from the rest.
"""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass

import numpy as np

from tahr.backends.sampling.candidates import Candidates, uniforms_of
from tahr.backends.sampling.lanes import Doubles, Floats, Ints, spans
from tahr.backends.sampling.logit_rows import LogitRows
from tahr.backends.sampling.logprobs import logprobs_of_samples
from tahr.backends.sampling.row_parts import errors_of, parts, with_errors
from tahr.backends.sampling.sample_rows import Flags, SampledTokens, SampleRows
from tahr.backends.sampling.stages import DRAW_FROM_ALL, FACTS, TAKE_BEST, Chain, chain_of, facts_of

WIDTHS = (256, 8192)  # lengths of candidate lists, tried before the whole vocabulary: almost always enough

Drawn = tuple[Ints, Doubles]  # tokens (or error codes) and the probabilities they had


def sample(logits: Floats, rows: SampleRows) -> SampledTokens:
    """Take the samples; a row gives the same token in any batch."""
    tokens = np.zeros(len(rows), np.int32)
    probabilities = np.ones(len(rows))
    with np.errstate(over="ignore"):  # a tiny temperature or penalty may send logits to infinity
        for chain, at in groups(rows).items():
            tokens[at], probabilities[at] = sample_group(logits, rows.take(at), chain)
    return SampledTokens(tokens, probabilities, logprobs_of_samples(logits, rows, tokens))


def groups(rows: SampleRows) -> dict[Chain, list[int]]:
    """The samples that run the same stages."""
    found: dict[Chain, list[int]] = {}
    for i, params in enumerate(rows.params):
        found.setdefault(chain_of(params), []).append(i)
    return found


def sample_group(logits: Floats, rows: SampleRows, chain: Chain) -> Drawn:
    if chain not in (TAKE_BEST, DRAW_FROM_ALL):
        return from_candidates(logits, rows, chain, widths_for(rows.n_vocab))
    tokens = []
    for part, held in parts(logits, rows):
        found = best_or_drawn(part, held, chain)
        tokens.append(with_errors(found, held))
    return np.concatenate(tokens), np.ones(len(rows))


def best_or_drawn(rows: SampleRows, held: LogitRows, chain: Chain) -> Ints:
    if chain == TAKE_BEST:
        return held.best
    uniforms = uniforms_of(rows.params)[:, 1]
    return held.draw(rows.params["temperature"], uniforms)


def widths_for(n_vocab: int) -> tuple[int, ...]:
    """Numbers of candidates to try; half the vocabulary saves nothing over all of it."""
    return (*(width for width in WIDTHS if 2 * width < n_vocab), n_vocab)


def from_candidates(logits: Floats, rows: SampleRows, chain: Chain, widths: ListOf[int]) -> Drawn:
    """Run the stages on few candidates; where these do not settle it, on more."""
    tokens = np.zeros(len(rows), np.int64)
    probabilities = np.ones(len(rows))
    unsure = np.zeros(len(rows), bool)
    for at in spans(len(rows), widths[0]):
        some = rows.take(range(*at.indices(len(rows))))
        tokens[at], probabilities[at], unsure[at] = from_best(logits, some, chain, widths[0])
    again = np.flatnonzero(unsure).tolist()
    if again:
        tokens[again], probabilities[again] = from_candidates(logits, rows.take(again), chain, widths[1:])
    return tokens, probabilities


def from_best(logits: Floats, rows: SampleRows, chain: Chain, width: int) -> tuple[Ints, Doubles, Flags]:
    """Tokens by that many candidates, their probabilities, and the rows that are not sure."""
    listed = [candidates_of(part, held, facts_of(chain), width) for part, held in parts(logits, rows)]
    errors = np.concatenate([each.errors for each in listed])
    s = joined(listed, rows)
    with np.errstate(invalid="ignore", divide="ignore"):  # a row that is not sure may hold anything
        for stage in chain:
            stage.apply(s)
        tokens, probabilities = s.draw()
    is_error = errors < 0
    tokens = np.where(is_error, errors, tokens)
    probabilities = np.where(is_error, 1, probabilities)
    return tokens, probabilities, s.unsure & (errors == 0)


@dataclass(frozen=True, slots=True)
class PartCandidates:
    """Candidates and facts of a part of the rows, all that is left of them once they are freed."""

    ids: Ints
    logits: Doubles
    facts: dict[str, Doubles]
    errors: Ints


def candidates_of(rows: SampleRows, held: LogitRows, facts: tuple[str, ...], width: int) -> PartCandidates:
    temperature = rows.params["temperature"]
    known = {name: FACTS[name](held, temperature) for name in facts}
    return PartCandidates(*held.best_first(width), known, errors_of(held))


def joined(listed: list[PartCandidates], rows: SampleRows) -> Candidates:
    return Candidates(
        np.concatenate([each.ids for each in listed]),
        np.concatenate([each.logits for each in listed]),
        rows.n_vocab,
        rows.params,
        {name: np.concatenate([each.facts[name] for each in listed]) for name in listed[0].facts},
    )
