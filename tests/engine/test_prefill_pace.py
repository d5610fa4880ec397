"""How many prompt tokens a step holds beside sequences that decode."""

import pytest

from tahr.engine.scheduling.work import PrefillPace


def taught(*steps: tuple[int, int, float]) -> PrefillPace:
    pace = PrefillPace(0.1)
    for step in steps:
        pace.learn(*step)
    return pace


def test_nothing_is_limited_before_a_step_has_told() -> None:
    assert taught().n_tokens is None
    assert taught((63, 0, 1.0)).n_tokens is None  # too small to tell


def test_a_quick_step_says_nothing_of_large_ones() -> None:
    """Every step reads all weights: 256 tokens in 9 ms, and 8,192 in 180."""
    assert taught((256, 0, 0.009)).n_tokens is None
    assert taught((8192, 0, 0.09), *[(256, 0, 0.009)] * 20).n_tokens == taught((8192, 0, 0.09)).n_tokens
    assert taught((8192, 0, 0.18), *[(2048, 0, 0.01)] * 20).n_tokens == 16384  # but that it is not slower than that


def test_the_number_stays_while_it_is_about_right() -> None:
    """Each number is a size of steps that may have to be captured; a card is 10 % slower when it is hot."""
    seconds = [0.09, 0.099, 0.105, 0.093, 0.11, 0.088] * 5
    pace = PrefillPace(0.1)
    numbers = set()
    for each in seconds:
        pace.learn(8192, 32, each)
        numbers.add(pace.n_tokens)
    assert numbers == {8192}
    for _ in range(8):
        pace.learn(8192, 32, 0.4)
    assert pace.n_tokens == 2048


def test_steps_that_decode_say_nothing_of_prompts() -> None:
    """A decoded token takes ten times as long as one of a prompt: 256 of them would make prompts crawl."""
    prompts = taught((8192, 0, 0.032))
    assert prompts.n_tokens == 24576
    assert taught((8192, 0, 0.032), *[(256, 256, 0.04)] * 20).n_tokens == prompts.n_tokens
    assert taught((8192, 0, 0.032), (300, 256, 0.04)).n_tokens == prompts.n_tokens
    assert taught((8192, 256, 0.032)).n_tokens == prompts.n_tokens  # mostly prompts


@pytest.mark.parametrize("token_us", [22.5, 23.0, 23.5, 24.0, 24.4])
def test_sizes_are_coarse(token_us: float) -> None:
    assert taught((4096, 0, 4096 * token_us / 1e6)).n_tokens == 4096


def test_a_slow_machine_gets_the_least() -> None:
    assert taught((64, 0, 60.0)).n_tokens == PrefillPace.LEAST
