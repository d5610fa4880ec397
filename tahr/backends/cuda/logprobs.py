"""Log-probabilities on the device: of given tokens and of the likeliest ones, by logits before any edit or stage."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tahr.backends.sampling.sample_rows import Ints, Logprobs

MOST_BYTES = 192 << 20  # memory for the rows worked on at once
LOGIT_BYTES = 32  # bytes of a logit and its copies in double precision and as a key, measured
LOW_BITS = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class PendingLogprobs:
    """Log-probabilities on their way to the host: [n, 1 + 2 * width] of own values, then values, then ids as bits."""

    n_top: Ints
    values: torch.Tensor

    def collect(self) -> Logprobs:
        """The log-probabilities; the caller has waited for them."""
        own = self.values.numpy()[:, 0]
        rest = self.values.numpy()[:, 1:]
        width = rest.shape[1] // 2
        listed = (np.arange(width) < self.n_top[:, None]) & np.isfinite(rest[:, :width]) & ~np.isnan(own)[:, None]
        ids = np.where(listed, np.ascontiguousarray(rest[:, width:]).view(np.int32), -1)
        return Logprobs(own.astype(np.float64), ids, np.where(listed, rest[:, :width], 0.0).astype(np.float64))


def begin_logprobs(
    logits: torch.Tensor, n_vocab: int, source: Ints, tokens: torch.Tensor, n_top: Ints
) -> PendingLogprobs:
    """Enqueue the log-probability of each token by row `source[i]`, and the `n_top[i]` likeliest tokens there."""
    n = len(source)
    width = min(int(n_top.max(initial=0)), n_vocab)
    at = torch.from_numpy(source.astype(np.int64)).to(logits.device, non_blocking=True)
    found = torch.empty((n, 1 + 2 * width), dtype=torch.float32, device=logits.device)
    n_at_once = max(1, MOST_BYTES // (LOGIT_BYTES * n_vocab))
    for first in range(0, n, n_at_once):
        some = slice(first, first + n_at_once)
        fill(found[some], logits[at[some], :n_vocab], tokens[some])
    if not found.is_cuda:
        return PendingLogprobs(n_top, found)
    there = torch.empty(found.shape, dtype=torch.float32, pin_memory=True)
    return PendingLogprobs(n_top, there.copy_(found, non_blocking=True))


def fill(found: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor) -> None:
    """Write what `PendingLogprobs` holds of a few rows; their copies are gone when this returns."""
    rows = rows.float() + 0.0  # makes both zeros equal
    # Summed in f64: the order of a sum, which depends on the number of rows, does not show in the f32 result.
    base = torch.logsumexp(rows.double(), 1, keepdim=True)
    broken = ~torch.isfinite(rows.amax(1, keepdim=True))
    own = rows.gather(1, tokens.long().clamp(min=0)[:, None]) - base
    found[:, :1] = torch.where(broken, torch.nan, own)
    width = found.shape[1] // 2
    if width:
        ids = likeliest(rows, width)
        found[:, 1 : 1 + width] = rows.gather(1, ids) - base
        found[:, 1 + width :] = ids.int().view(torch.float32)


def likeliest(rows: torch.Tensor, n: int) -> torch.Tensor:
    """The ids of the n largest numbers of each row, best first; of equal ones the lower id comes first."""
    bits = rows.view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    ids = torch.arange(rows.shape[1], device=rows.device)
    best = torch.topk((ordered << 32) + (LOW_BITS - ids), n, dim=1).values
    return LOW_BITS - (best & LOW_BITS)


def merged(parts: list[tuple[NDArray[np.intp], Logprobs]], n: int) -> Logprobs | None:
    """Log-probabilities of some samples, in their places among n."""
    if not parts:
        return None
    width = max(found.ids.shape[1] for _, found in parts)
    whole = Logprobs(np.full(n, np.nan), np.full((n, width), -1, np.int32), np.zeros((n, width)))
    for at, found in parts:
        n_listed = found.ids.shape[1]
        whole.own[at], whole.ids[at, :n_listed], whole.values[at, :n_listed] = found
    return whole
