"""Layers that pass through a GPU, beside everything else a request may ask for: the bits of those that stay there."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lora_files import peft_tensors, write_peft
from tahr import LLM, SamplingParams
from tahr.backends.cuda.layouts import presence
from tahr.config import EngineConfig
from tahr.errors import LoadError
from tahr.grammar import Grammar

pytestmark = pytest.mark.skipif(bool(presence.problem()), reason=presence.problem() or "there is a device")
BUDGET = "1100k"
TEXT = "Once upon a time there was a little dog who had a red ball."
PARAMS = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=3)
Found = tuple[str, Any]


def opened(path: Path, budget: str, **options: Any) -> LLM:
    """What fits a budget stays: the resident model has one, too."""
    sizes = {"context_size": 64, "kv_bytes": 1 << 17, "page_size": 8, "max_batch_size": 4, "max_prefill_tokens": 64}
    llm = LLM(str(path), config=EngineConfig(backend="cuda", gpu_budget=budget, **{**sizes, **options}))
    assert any("every step copies" in line for line in llm.load_log) == (budget == BUDGET)
    return llm


def both(path: Path, ask: Callable[[LLM], Any], **options: Any) -> Any:
    """What both say, which is the same."""
    with opened(path, BUDGET, **options) as streamed, opened(path, "1g", **options) as resident:
        found = ask(streamed)
        np.testing.assert_equal(found, ask(resident))
        return found


def told(llm: LLM, params: SamplingParams = PARAMS, texts: tuple[str, ...] = (TEXT,)) -> list[Found]:
    return [(found.text, found.logprobs) for found in llm.generate(list(texts), params)]


def test_adapters(stories: Path, tmp_path: Path) -> None:
    def ask(llm: LLM) -> list[Found]:
        linears = llm.engine.executor.decoder.linears
        llm.add_lora("mine", write_peft(tmp_path / "mine", peft_tensors(linears, 4, seed=1, strength=0.3), r=4))
        return told(llm, replace(PARAMS, lora="mine")) + told(llm)

    mine, plain = both(stories, ask)
    assert mine != plain


@pytest.mark.parametrize(
    "changes",
    [
        {"grammar": Grammar("regex", "[0-9]{3,6}")},
        {"n": 2, "temperature": 1.0, "seed": 5},
        {"cache_salt": "a key"},
    ],
    ids=["grammar", "choices", "salt"],
)
def test_parameters(stories: Path, changes: dict[str, Any]) -> None:
    both(stories, lambda llm: told(llm, replace(PARAMS, **changes)))


def test_a_budget_below_the_floor(stories: Path) -> None:
    with pytest.raises(LoadError, match=r"gpu_budget of 0\.2 MB is too small .* it needs at least \d\.\d MB"):
        opened(stories, "200k")


def test_drafts(stories: Path) -> None:
    guessed = both(stories, lambda llm: told(llm, replace(PARAMS, max_tokens=8)), spec_ngram=True, spec_tokens=2)
    assert guessed[0][0]


def test_hits_of_the_prefix_cache(stories: Path) -> None:
    def ask(llm: LLM) -> list[tuple[str, int]]:
        replies = [llm.generate([TEXT], PARAMS)[0] for _ in range(2)]
        return [(reply.text, reply.n_cached_tokens) for reply in replies]

    assert both(stories, ask)[1][1] > 0


def test_preempted_requests(stories: Path) -> None:
    def ask(llm: LLM) -> list[Found]:
        found = told(llm, replace(PARAMS, max_tokens=24), tuple(f"{TEXT}{i}" for i in range(3)))
        assert llm.stats().preemptions > 0
        return found

    both(stories, ask, kv_bytes=50_000)


def test_vectors(stories: Path) -> None:
    both(stories, lambda llm: llm.embed([TEXT, "a"], "mean"))


def test_batches_are_each_alone(stories: Path) -> None:
    texts = (TEXT, "The sea")

    def ask(llm: LLM) -> list[Found]:
        together = told(llm, texts=texts)
        assert together == [told(llm, texts=(text,))[0] for text in texts]
        return together

    both(stories, ask, deterministic=True)


def test_two_models_in_turns(stories: Path, tmp_path: Path) -> None:
    """Each has buffers of its own."""
    copied = tmp_path / "copied.gguf"
    copied.write_bytes(stories.read_bytes())
    with opened(stories, "1g") as resident:
        wanted = [told(resident), told(resident, texts=("The sea",))]
    with opened(stories, BUDGET) as one, opened(copied, BUDGET) as two:
        assert [told(one), told(two, texts=("The sea",))] == wanted
