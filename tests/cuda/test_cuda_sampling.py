"""Engines whose tokens a GPU samples give the replies of the host's sampler."""

from pathlib import Path

import pytest

import backends_here
from engines import submit
from tahr.backends.api import Backend, Tensor
from tahr.backends.cuda.layouts.presence import interprets
from tahr.backends.sampling import numpy_sampler
from tahr.backends.sampling.sample_rows import SampledAtOnce, SampleRows
from tahr.config import NEUTRAL_SAMPLING, EngineConfig, SamplingParams
from tahr.engine.engine import Engine
from tahr.loading.builder import build_engine
from tahr.models.loader.load import load, open_model

pytestmark = pytest.mark.skipif(
    "cuda" not in backends_here.NAMES or interprets(), reason="no GPU, or torch and Triton are missing"
)  # Triton's interpreter takes minutes for a model

ASKED = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=5),
    SamplingParams(temperature=0.9, seed=6, top_k=20, top_p=0.95, n=2),
    SamplingParams(temperature=0.9, seed=7, top_p=0.8, repetition_penalty=1.2, frequency_penalty=0.3),
    SamplingParams(temperature=1.0, seed=8, min_p=0.1, logit_bias={9: 2.0}, banned_tokens=(3,)),
    SamplingParams(temperature=1.0, seed=9, typical_p=0.8),
    SamplingParams(temperature=0.0, logprobs=2),
]


def make(be: Backend, path: Path) -> Engine:
    config = EngineConfig(context_size=128, page_size=8, max_batch_size=16)
    return build_engine(be, load(open_model([path]), be).decoder, config)[0]


def replies(eng: Engine) -> list[tuple[list[int], list[object]]]:
    default = SamplingParams(max_tokens=5, ignore_eos=True).over(NEUTRAL_SAMPLING)
    sequences = [submit(eng, [1, 2 + i, 3], params.over(default)) for i, params in enumerate(ASKED)]
    sequences = [each for seq in sequences for each in (seq, *seq.queueing.forks)]
    while not all(seq.done for seq in sequences):
        eng.step()
    return [(seq.tokens[seq.n_prompt :], [scored.token for scored in seq.result.logprobs]) for seq in sequences]


def test_replies_are_those_of_the_host(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be = backends_here.backend("cuda", deterministic=True)
    eng = make(be, stories)
    sampled = replies(eng)

    def host_bound(logits: Tensor, rows: SampleRows) -> SampledAtOnce:
        return SampledAtOnce(numpy_sampler.sample(be.read(logits), rows))

    monkeypatch.setattr(be, "sample", host_bound)
    monkeypatch.setattr(be, "host_samples", lambda rows: range(len(rows)))
    assert replies(eng) == sampled


def test_only_rows_that_need_the_host_go_there(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be = backends_here.backend("cuda", deterministic=True)
    eng, sample = make(be, stories), be.sample
    host_bound: set[int] = set()
    largest = 0

    def watched(logits: Tensor, rows: SampleRows) -> object:
        nonlocal largest
        pending = sample(logits, rows)
        host_bound.add(len(pending.host_bound))
        largest = max(largest, len(rows))
        return pending

    monkeypatch.setattr(be, "sample", watched)
    replies(eng)
    assert largest == len(ASKED) + 1 and max(host_bound) == 1
