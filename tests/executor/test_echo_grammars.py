"""Grammars with an executor that is given bytes: masks travel with the samples, texts stay what they were."""

import pytest

from assets import stories
from echo_executor import EchoExecutor
from engines import engine, run
from tahr.grammar import Grammar
from tahr.loading import builder
from test_grammar import DIGITS, hot, submit

FORCED = Grammar("regex", "([a-z]{3} )*[0-9]forced text[0-9]")


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_masks_pass_through_bytes(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    params = [hot(FORCED if seed % 3 else None, seed=seed, max_tokens=40) for seed in range(5)]
    params.append(hot(DIGITS, n=2))

    def replies() -> list[list[int]]:
        eng = engine(stories(), late=late)
        sequences = [submit(eng, each) for each in params]
        return run(eng, *sequences, *(fork for seq in sequences for fork in seq.queueing.forks))

    wanted = replies()
    monkeypatch.setattr(builder, "LocalExecutor", EchoExecutor)
    assert replies() == wanted
