"""Weights read as steps need them, beside everything else a request may ask for: the bits of those in memory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lora_files import peft_tensors, write_peft
from tahr import LLM, InferenceConfig, SamplingParams
from tahr.config import EngineConfig
from tahr.errors import ConfigError
from tahr.grammar import Grammar
from tahr.offload.policy import OffloadPolicy

BUDGET = "1100k"
TEXT = "Once upon a time there was a little dog who had a red ball. " * 2
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=3)
Found = tuple[str, Any]


def opened(path: Path, budget: str | None, **options: Any) -> LLM:
    sizes = {"context_size": 128, "kv_bytes": 1 << 18, "page_size": 8}
    llm = LLM(str(path), config=EngineConfig(backend="cpu", n_threads=2, ram_budget=budget, **{**sizes, **options}))
    assert any("MB paged" in line for line in llm.load_log) == bool(budget)
    return llm


def both(path: Path, ask: Callable[[LLM], Any], **options: Any) -> Any:
    """What both say, which is the same."""
    with opened(path, BUDGET, **options) as paged, opened(path, None, **options) as resident:
        found = ask(paged)
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
        {"n": 3, "temperature": 1.0, "seed": 5},
        {"prompt_logprobs": 2},
        {"cache_salt": "a key"},
    ],
    ids=["grammar", "choices", "prompt_logprobs", "salt"],
)
def test_parameters(stories: Path, changes: dict[str, Any]) -> None:
    params = replace(PARAMS, **changes)
    both(stories, lambda llm: [told(llm, params) for _ in range(2)])


def test_drafts(stories: Path) -> None:
    guessed = both(stories, lambda llm: told(llm, replace(PARAMS, max_tokens=40)), spec_ngram=True)
    assert guessed == both(stories, lambda llm: told(llm, replace(PARAMS, max_tokens=40)))


def test_hits_of_the_prefix_cache(stories: Path) -> None:
    def ask(llm: LLM) -> list[tuple[str, int]]:
        replies = [llm.generate([TEXT + end], PARAMS)[0] for end in ("", "", " Then")]
        return [(reply.text, reply.n_cached_tokens) for reply in replies]

    assert both(stories, ask)[1][1] > 0


def test_preempted_requests(stories: Path) -> None:
    def ask(llm: LLM) -> list[Found]:
        found = told(llm, replace(PARAMS, max_tokens=60), tuple(f"{TEXT}{i}" for i in range(4)))
        assert llm.stats().preemptions > 0
        return found

    both(stories, ask, kv_bytes=1 << 17, context_size=128)


def test_vectors(stories: Path) -> None:
    both(stories, lambda llm: llm.embed([TEXT, "a"], "mean"))


def test_batches_are_each_alone(stories: Path) -> None:
    texts = (TEXT, "The sea", "A cat and")

    def ask(llm: LLM) -> list[Found]:
        together = told(llm, texts=texts)
        assert together == [told(llm, texts=(text,))[0] for text in texts]
        return together

    both(stories, ask, deterministic=True)


def test_two_models_in_turns(stories: Path, tmp_path: Path) -> None:
    """Each has an arena of its own."""
    copied = tmp_path / "copied.gguf"
    copied.write_bytes(stories.read_bytes())
    with opened(stories, None) as resident:
        wanted = [told(resident), told(resident, texts=("The sea",))]
    with opened(stories, BUDGET) as one, opened(copied, BUDGET) as two:
        for _ in range(2):
            assert [told(one), told(two, texts=("The sea",))] == wanted


def test_sessions_have_their_weights_in_memory(stories: Path) -> None:
    with pytest.raises(ConfigError, match="weights cannot be offloaded"):
        InferenceConfig(str(stories), offload_policy=OffloadPolicy.budget(1 << 20))  # type: ignore[arg-type]
