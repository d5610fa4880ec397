"""How likely the model itself held its tokens: from its logits as they came, whatever sampling made of them."""

import numpy as np

from tahr.backends.sampling.lanes import spans
from tahr.backends.sampling.logit_rows import LogitRows
from tahr.backends.sampling.sample_rows import Floats, Ints, Logprobs, SampleRows


def logprobs(logits: Floats, n_vocab: int, source: Ints, tokens: Ints, n_top: Ints) -> Logprobs:
    """The log-probability of each token by row `source[i]`, and the `n_top[i]` likeliest tokens of that row."""
    width = int(n_top.max(initial=0))
    shape = len(tokens), width
    own = np.full(len(tokens), np.nan)
    ids = np.full(shape, -1, np.int32)
    result = Logprobs(own, ids, np.zeros(shape))
    at_once = spans(len(tokens), n_vocab)
    rows = LogitRows(len(tokens[at_once[0]]), n_vocab)
    for at in at_once:
        rows.load(logits[source[at], :n_vocab])
        rows.settle()
        result.own[at], result.ids[at], result.values[at] = of_part(rows, tokens[at], n_top[at], width)
    return result


def of_part(rows: LogitRows, tokens: Ints, n_top: Ints, width: int) -> Logprobs:
    n_rows = len(tokens)
    base = rows.top + np.log(rows.totals(np.ones(n_rows)))
    logprob = rows.logits[np.arange(n_rows), tokens] - base
    own = np.where(rows.unusable, np.nan, logprob)
    ids = np.full((n_rows, width), -1, np.int32)
    values = np.zeros((n_rows, width))
    best, logits = rows.best_first(max(1, width))
    n = min(width, best.shape[1])
    best = best[:, :n]
    logits = logits[:, :n]
    is_wanted = np.arange(n) < n_top[:, None]
    is_usable = ~rows.unusable[:, None]
    listed = is_wanted & is_usable & np.isfinite(logits)
    logprobs = logits - base[:, None]
    ids[:, :n][listed] = best[listed]
    values[:, :n][listed] = logprobs[listed]
    return Logprobs(own, ids, values)


def logprobs_of_samples(logits: Floats, rows: SampleRows, tokens: Ints) -> Logprobs | None:
    """Log-probabilities of sampled tokens, where a sample asks for them; nothing where no sample does."""
    if rows.n_logprobs is None:
        return None
    usable = np.maximum(tokens, 0)
    n_top = np.maximum(rows.n_logprobs, 0)
    return logprobs(logits, rows.n_vocab, rows.source, usable, n_top)
