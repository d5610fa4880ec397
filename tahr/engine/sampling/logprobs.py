"""How likely the model itself held its tokens: from its logits as they came, whatever sampling made of them."""

from collections.abc import Sequence as ListOf

import numpy as np

from tahr.engine.sampling.rows import Floats, Rows, not_numbers, spans
from tahr.engine.sampling.sampling_state import SampledToken
from tahr.errors import TahrError


def logprobs(logits: Floats, tokens: ListOf[int], n_tops: ListOf[int]) -> list[SampledToken | TahrError]:
    """Each token with its log-probability by its row, and the likeliest tokens of that row."""
    answers: list[SampledToken | TahrError] = []
    at_once = spans(*logits.shape)
    rows = Rows(len(logits[at_once[0]]), logits.shape[1])
    for at in at_once:
        rows.load(logits[at])
        rows.settle()
        answers += of_part(rows, tokens[at], n_tops[at])
    return answers


def of_part(rows: Rows, tokens: ListOf[int], n_tops: ListOf[int]) -> list[SampledToken | TahrError]:
    base = rows.top + np.log(rows.totals(np.ones(len(tokens))))
    picked = rows.logits[np.arange(len(tokens)), tokens] - base
    ids, values = rows.best_first(max(1, *n_tops))
    top = [list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), (values - base[:, None]).tolist(), strict=True)]
    return [
        not_numbers() if rows.unusable[i] else SampledToken(token, float(picked[i]), tuple(top[i][: n_tops[i]]))
        for i, token in enumerate(tokens)
    ]
