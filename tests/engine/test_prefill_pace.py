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


def test_steps_that_decode_say_nothing_of_prompts() -> None:
    """A decoded token takes ten times as long as one of a prompt: 256 of them would make prompts crawl."""
    prompts = taught((8192, 0, 0.016))
    assert prompts.n_tokens == 49152
    assert taught((8192, 0, 0.016), *[(256, 256, 0.004)] * 20).n_tokens == prompts.n_tokens
    assert taught((8192, 0, 0.016), (300, 256, 0.004)).n_tokens == prompts.n_tokens
    assert taught((8192, 256, 0.016)).n_tokens == prompts.n_tokens  # mostly prompts


@pytest.mark.parametrize("token_us", [22.5, 23.0, 23.5, 24.0, 24.4])
def test_sizes_are_coarse(token_us: float) -> None:
    assert taught((4096, 0, 4096 * token_us / 1e6)).n_tokens == 4096


def test_a_slow_machine_gets_the_least() -> None:
    assert taught((64, 0, 60.0)).n_tokens == PrefillPace.LEAST
