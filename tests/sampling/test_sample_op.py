"""`Backend.sample` against NumPy's: the same tokens, whatever the rows look like and whichever share a batch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends_here import NAMES, backend
from tahr.backends.cuda.layouts.presence import interprets
from tahr.backends.sampling import numpy_sampler
from tahr.backends.sampling.sample_rows import NOT_NUMBERS, NOTHING_LEFT, SampledTokens, SampleRows
from tahr.config import SamplingParams
from tahr.engine.sampling.sample_batch import SampleBatch
from tahr.engine.sampling.sampler import Sampler
from tahr.engine.sampling.sampling_state import SampledToken, SampleRequest, SamplingState
from tahr.errors import TahrError
from tahr.executor.sampling import LocalSampling
from test_sampler import Logits, model_like, random_options

OWN = [name for name in NAMES if name != "reference"]
Random = np.random.Generator

pytestmark = pytest.mark.parametrize("name", OWN)


def sample(name: str, requests: list[SampleRequest], logits: Logits) -> list[SampledToken | TahrError]:
    return Sampler(LocalSampling(backend(name)), logits.shape[1]).sample(requests, backend(name).tensor(logits))


# ---- rows of every kind -------------------------------------------------------------------------------------------


def flat(random: Random, n: int, n_vocab: int) -> Logits:
    return random.standard_normal((n, n_vocab)).astype(np.float32) * np.float32(2)


def tied(random: Random, n: int, n_vocab: int) -> Logits:
    return np.round(model_like(random, n, n_vocab))


def equal(random: Random, n: int, n_vocab: int) -> Logits:
    return np.full((n, n_vocab), 3, np.float32)


def few_values(random: Random, n: int, n_vocab: int) -> Logits:
    return np.where(random.random((n, n_vocab)) < 0.01, np.float32(5), np.float32(-0.0))


def masked(random: Random, n: int, n_vocab: int) -> Logits:
    logits = model_like(random, n, n_vocab)
    logits[random.random(logits.shape) < 0.7] = -np.inf
    return logits


def far_apart(random: Random, n: int, n_vocab: int) -> Logits:
    return (random.standard_normal((n, n_vocab)) * 1e4).astype(np.float32)


def with_outliers(random: Random, n: int, n_vocab: int) -> Logits:
    logits = flat(random, n, n_vocab)
    logits[:, ::7] = -1e30
    return logits


KINDS: list[Callable[[Random, int, int], Logits]] = [
    *(model_like, flat, tied, equal, few_values, masked, far_apart, with_outliers),
]


def crowd(random: Random, n: int, n_vocab: int) -> list[tuple[dict[str, Any], list[int]]]:
    options = [random_options(random) for _ in range(n)]
    for each in options:
        each.update({} if n_vocab > 150 else {"allowed_tokens": ()})
    return [(each, random.integers(0, 45, 30).tolist()) for each in options]


# Triton's interpreter takes seconds for what a device does in microseconds.
N_MEMBERS, VOCABULARIES = (16, (50, 1500)) if interprets() else (60, (50, 1000, 20011))


def requests(members: list[tuple[dict[str, Any], list[int]]]) -> list[SampleRequest]:
    return [SampleRequest(SamplingState(SamplingParams(**options)), list(tokens), 20) for options, tokens in members]


def outcome(answer: SampledToken | TahrError) -> object:
    return str(answer) if isinstance(answer, TahrError) else answer.token


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_vocab", VOCABULARIES)
def test_tokens_are_those_of_numpy(name: str, kind: Callable[[Random, int, int], Logits], n_vocab: int) -> None:
    random = np.random.default_rng(n_vocab)
    members = crowd(random, N_MEMBERS, n_vocab)
    logits = kind(random, len(members), n_vocab)
    logits[7, 3] = np.nan
    logits[9, n_vocab - 1] = np.inf
    logits[11] = -np.inf
    ours, theirs = requests(members), requests(members)
    with np.errstate(all="ignore"):
        found, wanted = sample(name, ours, logits), sample("reference", theirs, logits)
    different = [i for i in range(len(members)) if outcome(found[i]) != outcome(wanted[i])]
    assert len(different) <= 1
    for i in different:  # a random number fell within rounding of the border between two
        assert are_neighbours(theirs[i], logits[i], outcome(found[i]), outcome(wanted[i])), (i, members[i][0])
    assert [r.sampling.mu for r in ours] == pytest.approx([r.sampling.mu for r in theirs], abs=1e-4)


def are_neighbours(request: SampleRequest, row: Logits, one: object, other: object) -> bool:
    """Whether one token comes right after the other when all are in order."""
    ((_, held),) = numpy_sampler.parts(row[None], SampleBatch([request], [0], len(row)).next_rows(None))
    order = held.best_first(len(row))[0][0].tolist()
    return isinstance(one, int) and isinstance(other, int) and abs(order.index(one) - order.index(other)) == 1


def test_a_row_never_depends_on_its_neighbours(name: str) -> None:
    random = np.random.default_rng(5)
    members = crowd(random, 40, 3000)
    logits = model_like(random, 40, 3000)
    together = [outcome(answer) for answer in sample(name, requests(members), logits)]
    alone = [outcome(sample(name, [request], logits[i : i + 1])[0]) for i, request in enumerate(requests(members))]
    assert together == alone


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_are_those_of_numpy(name: str, kind: Callable[[Random, int, int], Logits]) -> None:
    random = np.random.default_rng(1)
    logits = kind(random, 8, 5000)
    counts = (0, 1, 5, 20, 100, 0, 3, 900)
    requested = [SampleRequest(SamplingState(SamplingParams(temperature=0, logprobs=n)), [], 0) for n in counts]
    logits[5, 4] = np.nan
    for one, other in zip(sample(name, requested, logits), sample("reference", requested, logits), strict=True):
        assert type(one) is type(other)
        if isinstance(one, SampledToken) and isinstance(other, SampledToken):
            assert one.token == other.token and one.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert [t for t, _ in one.top_logprobs] == [t for t, _ in other.top_logprobs]
            np.testing.assert_allclose([v for _, v in one.top_logprobs], [v for _, v in other.top_logprobs], atol=1e-5)


def test_host_logits_of_any_layout(name: str) -> None:
    random = np.random.default_rng(2)
    members, wide = crowd(random, 6, 400), flat(random, 6, 700)
    wanted = [outcome(answer) for answer in sample("reference", requests(members), wide[:, :400])]
    for layout in (wide, wide[:, :400], np.asfortranarray(wide[:, :400]), wide[:, :400].astype(np.float64)):
        answers = Sampler(LocalSampling(backend(name)), 400).sample(requests(members), layout)
        assert [outcome(answer) for answer in answers] == wanted


def test_logit_processors_leave_the_models_logits_alone(name: str) -> None:
    logits = backend(name).tensor(flat(np.random.default_rng(3), 4, 300))
    before = backend(name).read(logits).copy()
    options = {"temperature": 0, "banned_tokens": (1,), "logit_bias": {2: 9.0}, "logprobs": 2}
    Sampler(LocalSampling(backend(name)), 300).sample(requests([(options, list(range(25)))] * 4), logits)
    np.testing.assert_array_equal(backend(name).read(logits), before)


# ---- the op itself: rows of every kind in one batch ---------------------------------------------------------------

MIXED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.7},
    {"temperature": 0.8, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.4, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.95},
    {"temperature": 0.9, "top_k": 300, "min_p": 0.001, "top_p": 0.99},
    {"temperature": 1.0, "typical_p": 0.8},
    {"temperature": 0, "repetition_penalty": 1.3, "repeat_last_n": 20},
    {"temperature": 1.0, "top_k": 9, "presence_penalty": 0.6, "frequency_penalty": 0.4},
    {"temperature": 1.0, "logit_bias": {3: 9.0, 5: -4.0}},
    {"temperature": 1.0, "top_p": 0.8, "banned_tokens": (0, 1, 2)},
    {"temperature": 1.0, "allowed_tokens": tuple(range(7, 90))},
    {"temperature": 1.0, "mirostat": 2},
    {"temperature": 1.0, "top_p": 0.999},
]


def mixed_rows(n_vocab: int, source: list[int], masked: bool = True) -> SampleRows:
    """Samples of every kind; every second one also has a mask that allows about half of the tokens."""
    requested = [
        SampleRequest(SamplingState(SamplingParams(seed=i, **MIXED[i % len(MIXED)])), list(range(30)), 10)
        for i in range(len(source))
    ]
    rows = SampleBatch(requested, source, n_vocab).next_rows(None)
    words = np.random.default_rng(9).integers(0, 2**32, (len(source), -(-n_vocab // 32)), np.uint32)
    return replace(rows, mask=words, masked=np.arange(len(source)) % 2 == 1) if masked else rows


def taken(name: str, logits: Logits, rows: SampleRows) -> SampledTokens:
    return backend(name).sample(backend(name).tensor(logits), rows).collect()


N_LARGE = 3_000 if interprets() else 262_144


@pytest.mark.parametrize("n_vocab", [300, N_LARGE])
@pytest.mark.parametrize("kind", [model_like, flat, tied])
def test_mixed_rows_in_one_batch(name: str, kind: Callable[[Random, int, int], Logits], n_vocab: int) -> None:
    random = np.random.default_rng(n_vocab)
    logits = kind(random, len(MIXED), n_vocab + 8)
    logits[:, n_vocab:] = 99  # padding of the vocabulary is never sampled
    rows = mixed_rows(n_vocab, list(range(len(MIXED))))
    found, wanted = taken(name, logits, rows).tokens, taken("reference", logits, rows).tokens
    assert found.max() < n_vocab and np.count_nonzero(found != wanted) <= 1, (found, wanted)


def test_samples_that_share_rows(name: str) -> None:
    """Choices of one prompt are sampled from one row, with edits of their own."""
    logits = model_like(np.random.default_rng(4), 3, 500)
    source = [i % 3 for i in range(2 * len(MIXED))]
    tensor = backend(name).tensor(logits)
    found = backend(name).sample(tensor, mixed_rows(500, source)).collect().tokens
    np.testing.assert_array_equal(found, taken("reference", logits, mixed_rows(500, source)).tokens)
    np.testing.assert_array_equal(backend(name).read(tensor), logits, "logits stay as they are")


def test_a_sample_depends_on_its_own_row(name: str) -> None:
    logits = model_like(np.random.default_rng(6), len(MIXED), 700)
    together = taken(name, logits, mixed_rows(700, list(range(len(MIXED))))).tokens
    for order in (range(len(MIXED)), reversed(range(len(MIXED)))):
        rows = mixed_rows(700, list(range(len(MIXED))))
        some = list(order)[:5]
        np.testing.assert_array_equal(taken(name, logits, rows.take(some)).tokens, together[some])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_without_a_best_token_are_errors_of_their_own(name: str, value: float) -> None:
    n = len(MIXED)
    logits = model_like(np.random.default_rng(7), n, 300)
    rows = mixed_rows(300, list(range(n)), masked=False)
    sound = taken(name, logits, rows).tokens
    broken, empty = [0, 1, 2, 5, 8, 13], [3, 4, 6, 7, 10, 12]
    logits[broken, 123 % 300], logits[empty] = value, -np.inf
    found = taken(name, logits, rows).tokens
    assert found[broken].tolist() == [NOT_NUMBERS] * len(broken)
    assert found[empty].tolist() == [NOTHING_LEFT] * len(empty)
    others = [i for i in range(n) if i not in broken + empty]
    np.testing.assert_array_equal(found[others], sound[others])


def test_a_mask_of_nothing_leaves_nothing(name: str) -> None:
    logits = model_like(np.random.default_rng(7), 3, 300)
    rows = mixed_rows(300, [0, 1, 2])
    none = replace(rows, mask=np.zeros_like(rows.mask), masked=np.array([False, True, True]))
    found = taken(name, logits, none).tokens
    assert found[0] == logits[0, :300].argmax() and found[1:].tolist() == [NOTHING_LEFT] * 2


def test_without_samples_nothing_is_sampled(name: str) -> None:
    logits = model_like(np.random.default_rng(7), 1, 300)
    assert len(taken(name, logits, mixed_rows(300, [0]).take([])).tokens) == 0


@pytest.mark.parametrize("top_k", [0, 40, 1400])
def test_choices_too_wide_for_a_list(name: str, top_k: int) -> None:
    """Thousands of tokens within reach, many of them equal."""
    n_vocab = 3000 if interprets() else 50_000
    random = np.random.default_rng(top_k)
    logits = np.round(random.standard_normal((6, n_vocab)).astype(np.float32) * 3) / 4
    options = {"temperature": 2.0, "top_k": top_k, "top_p": 0.97}
    requested = [SampleRequest(SamplingState(SamplingParams(seed=i, **options)), [1], 1) for i in range(6)]
    rows = SampleBatch(requested, list(range(6)), n_vocab).next_rows(None)
    found, wanted = taken(name, logits, rows).tokens, taken("reference", logits, rows).tokens
    assert np.count_nonzero(found != wanted) <= 1, (found, wanted)
