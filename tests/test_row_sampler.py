"""A backend's own sampler picks what NumPy picks, whatever the rows look like and whoever stands beside them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backends_here import NAMES, backend
from tahr.backends.row_sampler import RowSampler
from tahr.config import SamplingParams
from tahr.engine.sampler import SampledToken, Sampler, SampleRequest, SamplingState
from tahr.engine.sampling import numpy_sampler as ways
from tahr.errors import TahrError
from test_sampler import Logits, model_like, random_options

OWN = [name for name in NAMES if backend(name).row_sampler]
NUMPY = Sampler()
Random = np.random.Generator

pytestmark = pytest.mark.parametrize("name", OWN)


def sampler(name: str) -> Sampler:
    return Sampler(backend(name).row_sampler)


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


def requests(members: list[tuple[dict[str, Any], list[int]]]) -> list[SampleRequest]:
    return [SampleRequest(SamplingState(SamplingParams(**options)), list(tokens), 20) for options, tokens in members]


def outcome(answer: SampledToken | TahrError) -> object:
    return str(answer) if isinstance(answer, TahrError) else answer.token


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_vocab", [50, 1000, 20011])
def test_picks_are_those_of_numpy(name: str, kind: Callable[[Random, int, int], Logits], n_vocab: int) -> None:
    random = np.random.default_rng(n_vocab)
    members = crowd(random, 60, n_vocab)
    logits = kind(random, len(members), n_vocab)
    logits[7, 3] = np.nan
    logits[9, n_vocab - 1] = np.inf
    logits[11] = -np.inf
    ours, theirs = requests(members), requests(members)
    with np.errstate(all="ignore"):
        found, wanted = sampler(name).sample(ours, logits), NUMPY.sample(theirs, logits)
    different = [i for i in range(len(members)) if outcome(found[i]) != outcome(wanted[i])]
    assert len(different) <= 1
    for i in different:  # a random number fell within rounding of the border between two
        assert are_neighbours(theirs[i], logits[i], outcome(found[i]), outcome(wanted[i])), (i, members[i][0])
    assert [r.sampling.mu for r in ours] == pytest.approx([r.sampling.mu for r in theirs], abs=1e-4)


def are_neighbours(request: SampleRequest, row: Logits, one: object, other: object) -> bool:
    """Whether one token comes right after the other when all are in order."""
    ((_, rows),) = ways.parts([request], row[None])
    order = rows.best_first(len(row))[0][0].tolist()
    return isinstance(one, int) and isinstance(other, int) and abs(order.index(one) - order.index(other)) == 1


def test_a_row_never_depends_on_its_neighbours(name: str) -> None:
    random = np.random.default_rng(5)
    members = crowd(random, 40, 3000)
    logits = model_like(random, 40, 3000)
    together = [outcome(answer) for answer in sampler(name).sample(requests(members), logits)]
    alone = [
        outcome(sampler(name).sample([request], logits[i : i + 1])[0]) for i, request in enumerate(requests(members))
    ]
    assert together == alone


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_are_those_of_numpy(name: str, kind: Callable[[Random, int, int], Logits]) -> None:
    random = np.random.default_rng(1)
    logits = kind(random, 8, 5000)
    counts = (0, 1, 5, 20, 100, 0, 3, 900)
    asked = [SampleRequest(SamplingState(SamplingParams(temperature=0, logprobs=n)), [], 0) for n in counts]
    logits[5, 4] = np.nan
    for one, other in zip(sampler(name).sample(asked, logits), NUMPY.sample(asked, logits), strict=True):
        assert type(one) is type(other)
        if isinstance(one, SampledToken) and isinstance(other, SampledToken):
            assert one.token == other.token and one.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert [t for t, _ in one.top_logprobs] == [t for t, _ in other.top_logprobs]
            np.testing.assert_allclose([v for _, v in one.top_logprobs], [v for _, v in other.top_logprobs], atol=1e-5)


def test_logits_of_any_layout(name: str) -> None:
    random = np.random.default_rng(2)
    members, wide = crowd(random, 6, 400), flat(random, 6, 700)
    wanted = [outcome(answer) for answer in NUMPY.sample(requests(members), wide[:, :400])]
    for layout in (wide[:, :400], np.asfortranarray(wide[:, :400]), wide[:, :400].astype(np.float64)):
        assert [outcome(answer) for answer in sampler(name).sample(requests(members), layout)] == wanted


def test_edits_leave_the_models_logits_alone(name: str) -> None:
    logits = flat(np.random.default_rng(3), 4, 300)
    before = logits.copy()
    options = {"temperature": 0, "banned_tokens": (1,), "logit_bias": {2: 9.0}, "logprobs": 2}
    sampler(name).sample(requests([(options, list(range(25)))] * 4), logits)
    np.testing.assert_array_equal(logits, before)


def test_the_interface_is_met(name: str) -> None:
    own = backend(name).row_sampler
    assert own is not None
    quick: RowSampler = own
    assert quick.NOT_NUMBERS < 0 and quick.NOTHING_LEFT < 0 and quick.NOT_NUMBERS != quick.NOTHING_LEFT
