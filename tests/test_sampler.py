"""Each sampling stage against a hand-worked case, and the picks against their distribution."""

import numpy as np
import pytest

from tahr.config import NEUTRAL_SAMPLING, SamplingParams
from tahr.engine.sampler import SHORTLIST, Picker, penalise, shortlist
from tahr.errors import ConfigError, GenerateError

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))


def kept(**options: float) -> dict[int, float]:
    params = SamplingParams(**options).over(NEUTRAL_SAMPLING)  # type: ignore[arg-type]
    tokens, weights = shortlist(LOGITS, params)
    return {int(t): round(float(w / weights.sum()), 4) for t, w in zip(tokens, weights, strict=True)}


def test_neutral_keeps_everything() -> None:
    assert kept() == {1: 0.4, 3: 0.3, 2: 0.2, 0: 0.1}


def test_top_k() -> None:
    assert kept(top_k=2) == {1: 0.5714, 3: 0.4286}


def test_top_p_keeps_the_token_that_crosses_the_line() -> None:
    assert list(kept(top_p=0.45)) == [1, 3]
    assert list(kept(top_p=0.39)) == [1]


def test_top_p_works_on_what_top_k_left() -> None:
    assert list(kept(top_k=3, top_p=0.7)) == [1, 3]  # 4/9 + 3/9 >= 0.7


def test_min_p_is_relative_to_the_best() -> None:
    assert list(kept(min_p=0.6)) == [1, 3]


def test_temperature_sharpens() -> None:
    assert kept(temperature=0.5) == {1: 0.5333, 3: 0.3, 2: 0.1333, 0: 0.0333}


def test_ties_go_to_the_lower_index() -> None:
    tokens, _ = shortlist(np.zeros(9, np.float32), SamplingParams(top_k=3).over(NEUTRAL_SAMPLING))
    assert tokens.tolist() == [0, 1, 2]


def test_a_short_list_gives_what_a_full_sort_gives() -> None:
    logits = np.random.default_rng(0).standard_normal(SHORTLIST * 4).astype(np.float32)
    for options in [{"top_p": 0.2}, {"top_p": 0.95}, {"min_p": 0.4}, {"min_p": 0.01, "top_p": 0.9}]:
        params = SamplingParams(**options).over(NEUTRAL_SAMPLING)  # type: ignore[arg-type]
        tokens, weights = shortlist(logits, params)
        p = np.exp(logits.astype(np.float64) - logits.max())
        order = np.argsort(-p, kind="stable")
        if params.min_p:
            order = order[p[order] >= params.min_p]
        cut = np.searchsorted(np.cumsum(p[order]), (params.top_p or 1) * p[order].sum()) + 1
        assert tokens.tolist() == order[:cut].tolist()
        np.testing.assert_allclose(weights, p[order[:cut]], rtol=1e-6)


def test_repetition_penalty_counts_a_token_once() -> None:
    params = SamplingParams(repetition_penalty=2.0, repeat_last_n=3)
    logits = np.array([4.0, -4.0, 1.0, 1.0], np.float32)
    assert penalise(logits, [3, 0, 0, 1], params).tolist() == [2.0, -8.0, 1.0, 1.0]
    assert logits.tolist() == [4.0, -4.0, 1.0, 1.0], "the engine's logits must stay as they are"


def test_greedy_takes_the_first_of_equals() -> None:
    params = SamplingParams(temperature=0).over(NEUTRAL_SAMPLING)
    assert {Picker(params).pick(np.array([1, 3, 3], np.float32), []) for _ in range(20)} == {1}


def test_same_seed_same_picks() -> None:
    params = SamplingParams(seed=11).over(NEUTRAL_SAMPLING)
    runs = [[picker.pick(LOGITS, []) for _ in range(50)] for picker in (Picker(params), Picker(params))]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 1


def test_picks_follow_the_distribution() -> None:
    picker = Picker(SamplingParams(seed=5).over(NEUTRAL_SAMPLING))
    counts = np.bincount([picker.pick(LOGITS, []) for _ in range(4000)], minlength=4)
    expected = np.exp(LOGITS) * 4000
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 16.27  # 3 degrees of freedom, one in a thousand


def test_logits_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(GenerateError, match="not numbers"):
        Picker(NEUTRAL_SAMPLING).pick(np.full(4, np.nan, np.float32), [])


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1), ("temperature", float("nan")), ("top_p", 0), ("top_p", 1.1), ("top_k", -1), ("min_p", 2),
     ("repetition_penalty", 0), ("max_tokens", 0), ("seed", -1), ("temperature", "hot"), ("top_k", True)],
)  # fmt: skip
def test_bad_parameters_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("stop", ["", ["a", ""], [3]])
def test_bad_stops_are_refused(stop: object) -> None:
    with pytest.raises(ConfigError, match="stop"):
        SamplingParams(stop=stop)  # type: ignore[arg-type]
