"""Log-probabilities on a GPU: memory for a few rows at a time, whatever the vocabulary, and the same bits."""

import numpy as np
import pytest

import backends_here
from tahr.backends.cuda.layouts.presence import interprets

if "cuda" not in backends_here.NAMES or interprets():
    pytest.skip("no GPU, or torch and Triton are missing", allow_module_level=True)

import torch

from tahr.backends.cuda import logprobs

N, N_VOCAB = 64, 262_144


def logits_of(n: int) -> torch.Tensor:
    made = torch.randn((n, N_VOCAB), generator=torch.Generator("cuda").manual_seed(3), device="cuda") * 4
    made[:, 7] = made[:, 9]  # a tie
    made[1, 5], made[2] = torch.nan, -torch.inf
    return made


def collected(logits: torch.Tensor) -> tuple[np.ndarray, ...]:
    n = len(logits)
    tokens = torch.arange(n, device="cuda") * 11
    pending = logprobs.begin_logprobs(logits, N_VOCAB, np.arange(n, dtype=np.int32), tokens, np.full(n, 20, np.int32))
    torch.cuda.synchronize()
    return tuple(pending.collect())


def test_many_rows_of_a_large_vocabulary_take_little_memory() -> None:
    logits = logits_of(N)
    collected(logits[:2])  # what is loaded once
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    collected(logits)
    assert torch.cuda.max_memory_allocated() - before < 1.1 * logprobs.MOST_BYTES


def test_rows_have_the_same_bits_whatever_is_worked_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = logits_of(N)
    few = collected(logits)
    monkeypatch.setattr(logprobs, "MOST_BYTES", 1 << 40)
    for ours, whole in zip(few, collected(logits), strict=True):
        np.testing.assert_array_equal(ours, whole)
