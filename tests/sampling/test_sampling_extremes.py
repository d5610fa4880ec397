"""Every number a sampling setting may take gives a token: the ends of each range, alone and against each other."""

import math
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from backends_here import NAMES, backend
from tahr.config import Range, SamplingParams
from tahr.engine.sampling.sampler import Sampler
from tahr.engine.sampling.sampling_state import SampledToken, SampleRequest, SamplingState
from tahr.executor.sampling import LocalSampling

N_VOCAB = 64
TEXT = [1, 2, 3, 4] * 20  # repeats, for the penalties
# A setting that does nothing alone, and what it needs.
NEEDS: dict[str, dict[str, Any]] = {
    "dry_base": {"dry_multiplier": 1.0},
    "dry_allowed_length": {"dry_multiplier": 1.0},
    "dry_penalty_last_n": {"dry_multiplier": 1.0},
    "mirostat_tau": {"mirostat": 2},
    "mirostat_eta": {"mirostat": 2},
    "xtc_threshold": {"xtc_probability": 1.0},
    "repeat_last_n": {"repetition_penalty": 2.0},
}
SAMPLED = (*NEEDS, "temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "top_a", "eta_cutoff")
SAMPLED += ("xtc_probability", "dry_multiplier", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed")


def ends(limits: Range) -> list[int | float]:
    """Both ends of a range and the numbers next to them."""
    if limits.whole:
        found: list[int | float] = [int(limits.low), int(limits.low) + 1, int(limits.high)]
    else:
        found = [limits.low, math.nextafter(limits.low, math.inf), math.nextafter(limits.high, 0), limits.high]
    return [value for value in found if limits.holds(value)]


def assert_gives_tokens(name: str, options: list[dict[str, Any]]) -> None:
    logits = np.random.default_rng(0).standard_normal((len(options), N_VOCAB)).astype(np.float32) * 4
    params = [SamplingParams(dry_sequence_breakers=(), **one) for one in options]
    requests = [SampleRequest(SamplingState(each), TEXT, 8) for each in params]
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        found = Sampler(LocalSampling(backend(name)), N_VOCAB).sample(requests, backend(name).tensor(logits))
    for one, made in zip(options, found, strict=True):
        assert isinstance(made, SampledToken) and 0 <= made.token < N_VOCAB, (one, made)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("setting", SAMPLED)
def test_ends_of_a_range(name: str, setting: str) -> None:
    assert_gives_tokens(name, [NEEDS.get(setting, {}) | {setting: end} for end in ends(SamplingParams.RANGES[setting])])


@pytest.mark.parametrize("name", NAMES)
def test_ends_against_each_other(name: str) -> None:
    options = []
    for first, second in combinations(sorted(SAMPLED), 2):
        needed = NEEDS.get(first, {}) | NEEDS.get(second, {})
        pairs = product(ends(SamplingParams.RANGES[first]), ends(SamplingParams.RANGES[second]))
        options += [needed | {first: one, second: other} for one, other in pairs]
    assert len(options) > 1000
    for begin in range(0, len(options), 256):
        assert_gives_tokens(name, options[begin : begin + 256])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("more", [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 3}], ids=str)
@pytest.mark.parametrize("temperature", [1e-9, 1e-3, 0.02, 0.05, 0.1])
def test_a_low_temperature_takes_the_best_of_what_is_left(name: str, more: dict[str, Any], temperature: float) -> None:
    """Beside the best of all, which xtc has excluded, what is left weighs less than rounding does."""
    logits = np.random.default_rng(1).standard_normal((1, 1000)).astype(np.float32) - 10
    logits[0, [5, 6, 7]] = 3, 1, -1  # only 5 and 6 are above the threshold
    params = SamplingParams(temperature=temperature, xtc_probability=1.0, xtc_threshold=0.1, **more)
    requests = [SampleRequest(SamplingState(replace(params, seed=seed)), TEXT, 8) for seed in range(20)]
    found = Sampler(LocalSampling(backend(name)), 1000).sample(
        requests, backend(name).tensor(np.repeat(logits, 20, axis=0))
    )
    assert [made.token for made in found if isinstance(made, SampledToken)] == [6] * 20
