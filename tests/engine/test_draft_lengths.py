"""How many tokens are drafted: what pays is drafted, what does not is left alone, and no load is slower for it."""

import random

import pytest

from speculating import Script
from tahr.config import GREEDY
from tahr.engine.sequences.draft_state import DraftState
from tahr.engine.sequences.parts import ReplyState
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.speculation.costs import StepCosts
from tahr.engine.speculation.lengths import Prospect, draft_lengths
from tahr.engine.speculation.speculator import Speculator


def costs(base: float, per_token: float, sizes: tuple[int, ...] = (1, 5, 16, 80)) -> StepCosts:
    found = StepCosts()
    for size in sizes:
        found.measure(size, 1000.0)  # compiles and records
        found.measure(size, base + per_token * size)
    return found


def lengths(
    acceptances: list[float], known: StepCosts, passes: float = 0.0, n_decoding: int = 0, first_s: float = 0.0
) -> list[int]:
    prospects = [Prospect(acceptance, first_s) for acceptance in acceptances]
    return draft_lengths(prospects, n_decoding or len(acceptances), known, lambda n: passes, 8)


def test_free_verification_is_used_to_the_full() -> None:
    assert lengths([0.8], costs(1.0, 0.0)) == [8]


def test_nothing_is_drafted_before_anything_is_measured() -> None:
    assert lengths([0.9], StepCosts()) == [0]


def test_what_is_seldom_right_is_not_drafted() -> None:
    assert lengths([0.05], costs(0.8, 0.2)) == [0]
    assert lengths([0.0, 0.9], costs(0.9, 0.1)) == [0, lengths([0.0, 0.9], costs(0.9, 0.1))[1]]
    assert lengths([0.0, 0.9], costs(0.9, 0.1))[1] > 2


def test_a_draft_model_that_is_as_slow_as_its_target_is_not_asked() -> None:
    assert lengths([0.9], costs(1.0, 0.0), passes=1.0) == [0]
    assert lengths([0.9], costs(1.0, 0.0), passes=0.1)[0] >= 4


@pytest.mark.parametrize("n_seqs", [1, 4, 16, 64])
def test_large_batches_turn_it_off_when_tokens_cost(n_seqs: int) -> None:
    found = lengths([0.7] * n_seqs, costs(0.9, 0.1))
    assert (max(found) > 0) == (n_seqs <= 4)


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("per_token", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("passes", [0.0, 0.15])
def test_the_length_chosen_is_near_the_best(acceptance: float, per_token: float, passes: float) -> None:
    def rate(k: int) -> float:
        return sum(acceptance**j for j in range(k + 1)) / (1 - per_token + per_token * (1 + k) + passes * k)

    chosen = lengths([acceptance], costs(1 - per_token, per_token), passes)[0]
    assert rate(chosen) >= max(rate(k) for k in range(9)) / 1.06


def test_a_bad_measurement_does_not_stay() -> None:
    known = costs(0.95, 0.05)
    for _ in range(3):
        known.measure(5, 100.0)
    for _ in range(9):
        known.measure(5, 0.95 + 5 * 0.05)
    assert lengths([0.8], known)[0] >= 3


def test_what_compiling_takes_is_not_what_a_step_costs() -> None:
    known = costs(0.95, 0.05, sizes=(1,))
    known.measure(5, 500.0)  # the first step with four drafts
    assert lengths([0.8], known)[0] >= 3


def test_the_reply_must_repay_what_comes_before_its_first_draft() -> None:
    known = costs(0.95, 0.05)
    assert lengths([0.8], known, passes=0.1, first_s=0.1)[0] > 0
    assert lengths([0.8], known, passes=0.1, first_s=3.0) == [0]


def test_sizes_that_lie_close_do_not_tell_what_a_token_costs() -> None:
    known = costs(0.0, 0.0, sizes=())
    known.token_s = 0.055
    for _ in range(9):
        known.measure(16, 1.0)
        known.measure(17, 0.98)  # measured at a better moment
    assert lengths([0.8] * 16, known, passes=0.1) == [0] * 16


def test_a_second_row_that_is_almost_free_is_used() -> None:
    times = {1: 38.0, 2: 41.0, 3: 51.0, 4: 61.0, 5: 77.0}
    known = StepCosts()
    for _ in range(10):
        for n_tokens, seconds in times.items():
            known.measure(n_tokens, seconds)
    assert lengths([0.45], known, passes=4.5) == [1]  # a straight line would say that it does not pay


@pytest.mark.parametrize(("first_s", "n_guesses"), [(0.0, 8), (0.1, 4), (1.0, 0)])
def test_guesses_that_are_not_expected_to_pay_cost_little(first_s: float, n_guesses: int) -> None:
    class Dear(Script):
        def first_seconds(self, seq: Sequence) -> float:
            return first_s

    speculator = Speculator(Dear([]), 4)
    speculator.costs = costs(0.9, 0.1)
    speculator._idle_s = 80.0
    seqs = [Sequence([1], GREEDY, ReplyState(64)) for _ in range(16)]
    assert sum(speculator._probes(seqs)) == n_guesses


def test_acceptance_follows_what_comes() -> None:
    rng, state = random.Random(1), DraftState(0.7)
    for _ in range(200):
        n_right = next((i for i in range(4) if rng.random() > 0.4), 4)
        state.learn(4, n_right, 0)
    assert 0.2 < state.acceptance < 0.6
    for _ in range(12):
        state.learn(8, 8, 0)
    assert state.acceptance > 0.95
