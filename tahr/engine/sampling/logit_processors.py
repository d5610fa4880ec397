"""Edits of single logits, in their fixed order: bias, bans, penalties, DRY. They hold for greedy requests too."""

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as ListOf

import numpy as np

from tahr.config import SamplingParams
from tahr.engine.sampling.dry import Dry, Resolve
from tahr.engine.sampling.rows import Ints
from tahr.engine.sampling.sparse_logits import Row
from tahr.errors import ConfigError

Edit = Callable[[Row, ListOf[int], int], None]  # changes a row, given the tokens so far and how many are the prompt


def logit_bias(params: SamplingParams) -> Edit | None:
    """Add a bias to some logits."""
    bias = dict(params.logit_bias)
    ids, values = id_array(bias), np.array(list(bias.values()), np.float32)

    def edit(row: Row, tokens: ListOf[int], n_prompt: int) -> None:
        row[ids] += values

    return edit if bias else None


def banned_tokens(params: SamplingParams) -> Edit | None:
    """Never pick these."""
    ids = id_array(params.banned_tokens)

    def edit(row: Row, tokens: ListOf[int], n_prompt: int) -> None:
        row[ids] = -np.inf

    return edit if len(ids) else None


def allowed_tokens(params: SamplingParams) -> Edit | None:
    """Never pick others."""
    ids = id_array(params.allowed_tokens)

    def edit(row: Row, tokens: ListOf[int], n_prompt: int) -> None:
        kept = row[ids]
        row.fill(-np.inf)
        row[ids] = kept

    return edit if len(ids) else None


def repetition_penalty(params: SamplingParams) -> Edit | None:
    """Positive logits divided, negative multiplied, once per distinct token of the window."""
    penalty, window = np.float32(params.repetition_penalty or 1), params.repeat_last_n or 0

    def edit(row: Row, tokens: ListOf[int], n_prompt: int) -> None:
        seen = id_array(set(tokens if window < 0 else tokens[max(0, len(tokens) - window) :]))
        row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)

    return edit if penalty != 1 and window else None


def presence_and_frequency(params: SamplingParams) -> Edit | None:
    """Take the presence penalty once and the frequency penalty each time a token was generated."""
    presence, frequency = params.presence_penalty or 0.0, params.frequency_penalty or 0.0

    def edit(row: Row, tokens: ListOf[int], n_prompt: int) -> None:
        counts = Counter(tokens[n_prompt:])
        times = np.array(list(counts.values()), np.float32)
        row[id_array(counts)] -= np.float32(presence) + np.float32(frequency) * times

    return edit if presence or frequency else None


EDITS = (logit_bias, banned_tokens, allowed_tokens, repetition_penalty, presence_and_frequency)


def not_yet(ids: Ints, min_tokens: int) -> Edit:
    """Do not pick what would end the request before it has min_tokens."""

    def edit(row: Row, tokens: ListOf[int], n_prompt: int) -> None:
        if len(tokens) - n_prompt < min_tokens:
            row[ids] = -np.inf

    return edit


def edits_of(params: SamplingParams, eos_tokens: Iterable[int], resolve: Resolve | None) -> tuple[Edit, ...]:
    """The edits a request needs, in order."""
    edits = [edit for make in EDITS if (edit := make(params)) is not None]
    if params.min_tokens:
        edits.append(not_yet(id_array({*eos_tokens, *params.stop_token_ids}), params.min_tokens))
    if params.dry_multiplier:
        edits.append(Dry(params, breakers_of(params, resolve)).penalise)
    return tuple(edits)


def breakers_of(params: SamplingParams, resolve: Resolve | None) -> list[ListOf[int]]:
    """DRY's sequence breakers as tokens."""
    found: list[ListOf[int]] = []
    for breaker in params.dry_sequence_breakers:
        if not isinstance(breaker, str):
            found.append(breaker)
        elif resolve is None:
            raise ConfigError(
                f"dry_sequence_breakers holds the text {breaker!r}, but there is no tokenizer here: give token ids."
            )
        else:
            found.extend(resolve(breaker))
    return found


def id_array(ids: Iterable[int]) -> Ints:
    return np.fromiter(ids, np.int64)
