"""Tokens drawn on the device are those the host would pick."""

from pathlib import Path

import numpy as np
import pytest

import backends_here
from engines import submit
from random_weights import random_tensor
from tahr.backends.api import Backend, StepLimits, Tensor
from tahr.backends.cuda.presence import interprets
from tahr.config import NEUTRAL_SAMPLING, EngineConfig, SamplingParams
from tahr.engine.builder import build_engine
from tahr.engine.engine import Engine
from tahr.engine.sampling.rows import Rows
from tahr.errors import GenerateError
from tahr.models.loader import load, open_model

pytestmark = pytest.mark.skipif("cuda" not in backends_here.NAMES, reason="no GPU, or torch and Triton are missing")
SIZES = [(5, 40), (9, 700)] if interprets() else [(5, 40), (64, 700), (300, 151_936)]


def by_host(logits: np.ndarray, temperatures: np.ndarray, chances: np.ndarray) -> np.ndarray:
    rows = Rows(len(logits), logits.shape[1])
    rows.load(logits)
    rows.settle()
    safe = np.where(temperatures == 0, 1, temperatures)
    return np.where(temperatures == 0, rows.best, rows.draw(safe, chances))


@pytest.mark.parametrize(("n", "n_vocab"), SIZES)
@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_draws_are_the_hosts(n: int, n_vocab: int, spread: float) -> None:
    be, rng = backends_here.backend("cuda"), np.random.default_rng(n)
    logits = (spread * rng.standard_normal((n, n_vocab + 3))).astype(np.float32)
    logits[:, n_vocab:] = 99  # padding of the vocabulary: never picked
    logits[0, [7, 3, 21]] = 50  # equals: the lower id
    temperatures = rng.choice([0, 0.01, 0.7, 1, 3], n)
    temperatures[0] = 0
    chances = rng.random(n)
    chances[1:3] = 0, 1 - 2**-53
    tokens = be.draw(be.tensor(logits), n_vocab, temperatures, chances)
    assert tokens[0] == 3 and tokens.max() < n_vocab
    np.testing.assert_array_equal(tokens, by_host(logits[:, :n_vocab], temperatures, chances))


def test_rows_without_a_best_token_say_so() -> None:
    be, logits = backends_here.backend("cuda"), np.zeros((5, 200), np.float32)
    logits[0, 150], logits[1, 2], logits[2], logits[3, 5:] = np.nan, np.inf, -np.inf, -np.inf
    for temperature in (0.0, 1.0):
        tokens = be.draw(be.tensor(logits), 200, np.full(5, temperature), np.full(5, 0.99))
        assert tokens[:3].tolist() == [-1] * 3
        assert 0 <= tokens[3] < 5 and tokens[4] >= 0


def test_draws_follow_their_weights() -> None:
    be, n = backends_here.backend("cuda"), 4000 if not interprets() else 200
    logits = np.log(np.array([[0.1, 0.2, 0.3, 0.4]], np.float32)).repeat(n, axis=0)
    tokens = be.draw(be.tensor(logits), 4, np.ones(n), (np.arange(n) + 0.5) / n)
    np.testing.assert_allclose(np.bincount(tokens, minlength=4) / n, [0.1, 0.2, 0.3, 0.4], atol=2 / n)


def test_a_plan_with_padding_draws_for_live_rows_alone() -> None:
    be = backends_here.backend("cuda")
    table = be.weight(random_tensor("F32", (8, 16), np.random.default_rng(3)))
    step = be.step_inputs(StepLimits(4, 4, 4, 1, n_tokens_per_seq=1))
    step.counts[:], step.ids[:2], step.logit_rows[:2] = 2, [5, 3], [0, 1]

    def forward() -> Tensor:
        return be.gather_rows(be.embed(table, step), step)

    plan = be.record(forward, step)
    plan.run()
    tokens = be.draw(plan.result, 16, np.zeros(2), np.zeros(2))
    np.testing.assert_array_equal(tokens, be.read(plan.result).argmax(axis=1))


# ---- engines ----------------------------------------------------------------------------------------------------

HOT = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, seed=5)
ASKED = [SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True), HOT, HOT,
         SamplingParams(temperature=1.0, max_tokens=9, ignore_eos=True, seed=6, n=2)]  # fmt: skip
EDITED = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, repetition_penalty=1.3)


def make(be: Backend, path: Path) -> Engine:
    config = EngineConfig(context_size=128, page_size=8, max_batch_size=8)
    return build_engine(be, load(open_model([path]), be).decoder, config)[0]


def replies(eng: Engine, asked: list[SamplingParams]) -> list[list[int]]:
    sequences = [submit(eng, [1, 2 + i, 3], params.over(NEUTRAL_SAMPLING)) for i, params in enumerate(asked)]
    sequences = [each for seq in sequences for each in (seq, *seq.forks)]
    while not all(seq.done for seq in sequences):
        eng.step()
    return [seq.tokens[seq.n_prompt :] for seq in sequences]


def test_replies_are_those_of_the_host(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be = backends_here.backend("cuda", deterministic=True)
    monkeypatch.setattr(be, "draws", True)
    eng = make(be, stories)
    fetched = []
    read = be.read
    monkeypatch.setattr(be, "read", lambda tensor: fetched.append(1) or read(tensor))
    drawn = replies(eng, ASKED)
    assert len(fetched) <= 2, "only where one prompt has two answers"
    mixed = replies(eng, [*ASKED, EDITED])  # while the last one runs, the host picks for all
    monkeypatch.setattr(be, "draws", False)
    assert replies(eng, [*ASKED, EDITED]) == mixed
    assert mixed[: len(drawn)] == drawn


def test_a_drawn_request_fails_alone(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be = backends_here.backend("cuda", deterministic=True)
    monkeypatch.setattr(be, "draws", True)
    eng = make(be, stories)
    wanted = replies(eng, ASKED[:2])
    sound = be.draw
    monkeypatch.setattr(be, "draw", lambda *given: np.append(sound(*given)[:-1], -1))
    sequences = [submit(eng, [1, 2 + i, 3], params.over(NEUTRAL_SAMPLING)) for i, params in enumerate(ASKED[:2])]
    victim = submit(eng, [1, 9], HOT.over(NEUTRAL_SAMPLING))
    eng.step()
    assert isinstance(victim.error, GenerateError)
    monkeypatch.setattr(be, "draw", sound)
    while eng.busy:
        eng.step()
    assert [seq.tokens[seq.n_prompt :] for seq in sequences] == wanted
