"""Prompts with rows of a tower give the same bits as alone: in any batch, chunk, cache and order of events."""

from functools import cache
from pathlib import Path

import pytest

from backends_here import NAMES
from echo_executor import EchoExecutor
from engines import greedy, loaded
from lora_files import random_adapter
from lora_runs import target_of
from pseudo_tower import SHORT, Part, alone, replies, row_engine, submit_parts
from tahr.config import SamplingParams
from tahr.engine.engine import Engine
from tahr.grammar import Grammar
from tahr.grammar.compiler import GrammarCompiler
from tahr.loading import builder

TEXT = list(range(40, 59))
IMAGE: list[Part] = [TEXT[:9], (1, 11), TEXT[9:14]]
TWO: list[Part] = [TEXT[:3], (2, 5), TEXT[3:5], (1, 11), TEXT[5:8]]
PLAIN: list[Part] = [TEXT[2:17]]
PROMPTS = [IMAGE, PLAIN, TWO, [(3, 8), TEXT[:1]], [TEXT, TEXT[::-1]]]
BACKENDS = [name for name in NAMES if name != "cuda"]


def together(path: Path, params: SamplingParams = SHORT, **options: object) -> list[object]:
    eng = row_engine(path, **options)  # type: ignore[arg-type]
    return replies(eng, *(submit_parts(eng, parts, params, bool(options.get("axes"))) for parts in PROMPTS))


def each_alone(path: Path, **options: object) -> list[object]:
    return [reply for parts in PROMPTS for reply in alone(path, parts, **options)]


SHAPES: dict[str, dict[str, object]] = {
    "batched": {},
    "chunked": {"prefill_chunk_size": 7},
    "few-slots": {"n_slots": 16},
    "narrow-tower": {"tower_tokens": 22},
    "two-at-once": {"max_batch_size": 2},
}


@pytest.mark.parametrize("axes", [False, True], ids=["", "axes"])
@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch_gives_the_bits_of_each_alone(stories: Path, shape: str, late: bool, axes: bool) -> None:
    assert together(stories, late=late, axes=axes, **SHAPES[shape]) == each_alone(stories, axes=axes)


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_gives_the_bits_of_each_alone(stories: Path, name: str) -> None:
    options = {"name": name, "axes": True, "prefill_chunk_size": 9}
    assert together(stories, **options) == each_alone(stories, name=name, axes=True)


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_rows_pass_through_bytes(stories: Path, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[EchoExecutor] = []

    def echoing(*args: object, **options: object) -> EchoExecutor:
        made.append(EchoExecutor(*args, **options))
        return made[-1]

    options = {"late": late, "axes": True, "prefill_chunk_size": 7, "n_slots": 16}
    wanted = together(stories, **options)
    host = together(stories, **options, tower=False)
    monkeypatch.setattr(builder, "LocalExecutor", echoing)
    assert together(stories, **options) == wanted
    assert together(stories, **options, tower=False) == host
    assert sum(each.n_echoes for each in made) > 5


def test_an_image_counts_by_its_bytes_and_its_place(stories: Path) -> None:
    """Otherwise equal bits would show nothing."""
    found = [
        alone(stories, parts)
        for parts in (IMAGE, [TEXT[:9], (2, 11), TEXT[9:14]], [TEXT[:8], (1, 11), TEXT[8:14]], [TEXT[:9], TEXT[9:14]])
    ]
    assert all(a != b for i, a in enumerate(found) for b in found[:i])
    assert alone(stories, IMAGE, axes=True) != alone(stories, IMAGE)


# ---- beside other capabilities --------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_adapters_change_what_is_made_of_rows(stories: Path, late: bool) -> None:
    """The tower is nobody's adapter's, so its rows serve all; pages are of one adapter each."""
    params = [greedy(8, logprobs=2, lora=lora) for lora in ((), (("a", 1.0),), (("a", 0.5), ("b", 1.0)))]

    def with_adapters(**options: object) -> Engine:
        eng = row_engine(stories, **options)  # type: ignore[arg-type]
        for seed, name in enumerate("ab"):
            eng.adapters.add(
                name, eng.executor.adapters.bring(random_adapter(target_of(loaded(stories)[0]), seed, rank=4))
            )
        return eng

    eng = with_adapters(late=late, prefill_chunk_size=7)
    found = replies(eng, *(submit_parts(eng, IMAGE, each) for each in params))
    wanted = []
    for each in params:
        single = with_adapters(prefix_cache=False)
        wanted += replies(single, submit_parts(single, IMAGE, each))
    assert found == wanted and found[0] != found[1] != found[2]


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_grammars_after_rows(stories: Path, late: bool) -> None:
    """While an image is computed, others' masks wait for the tokens before."""
    pytest.importorskip("llguidance")
    digits = Grammar("regex", "[0-9 ]{20}")

    def run_all(every: list[list[Part]], **options: object) -> list[object]:
        eng = row_engine(stories, **options)  # type: ignore[arg-type]
        made = [
            submit_parts(eng, parts, greedy(12, grammar=digits), grammar=compiler(stories).state(digits))
            for parts in every
        ]
        return [each[0] for each in replies(eng, *made)]  # type: ignore[index]

    every = [IMAGE, PLAIN, TWO]
    found = run_all(every, late=late, tower_tokens=22)
    assert found == [run_all([parts], prefix_cache=False)[0] for parts in every]


@cache
def compiler(path: Path) -> GrammarCompiler:
    return GrammarCompiler(loaded(path)[1])


def test_two_models_keep_rows_apart(stories: Path) -> None:
    """One has a tower, the other takes the rows of the host: the same digests name other rows."""
    first, second = row_engine(stories), row_engine(stories, tower=False, number=1)
    one, other = submit_parts(first, IMAGE, SHORT), submit_parts(second, IMAGE, SHORT)
    while not (one.done and other.done):
        for eng in (first, second):
            if eng.busy:
                eng.step()
    assert [(one.tokens, one.result.logprobs, [])] == alone(stories, IMAGE)
    assert [(other.tokens, other.result.logprobs, [])] == alone(stories, IMAGE, tower=False)
    assert one.tokens != other.tokens
