"""A model over ranks in processes says, to the bit, what virtual ranks say."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines import greedy, run, submit
from lora_files import peft_tensors, write_peft
from model_cases import CASES, make_weights, token_ids
from model_files import write_hf
from rank_groups import SIZES, engines_of, group_of, opened
from sharded_cases import WITH_RANKS
from tahr import LLM, SamplingParams
from tahr.config import EngineConfig
from tahr.errors import AdapterError, ConfigError, LoadError
from tahr.grammar import Grammar
from tahr.loading.builder import load_engine
from tahr.models.loader.load import open_model, sharding_of
from tahr.text.tokens.tokenizer import Tokenizer
from tiers import full_but

TEXT = "Once upon a time there was a little dog who had a red ball. " * 2
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=3)
TIGHT = {"kv_bytes": 1 << 18, "prefill_chunk_size": 8, "spec_ngram": True}
Pair = tuple[LLM, LLM]


def pair_of(path: Path, n_ranks: int, **options: Any) -> Iterator[Pair]:
    with (
        opened(path, virtual_ranks=n_ranks, **options) as virtual,
        opened(path, tensor_parallel=n_ranks, **options) as shared,
    ):
        yield virtual, shared


@pytest.fixture(scope="module")
def pair(stories: Path) -> Iterator[Pair]:
    """Two virtual ranks, and two processes."""
    yield from pair_of(stories, 2)


@pytest.fixture(scope="module")
def tight(stories: Path) -> Iterator[Pair]:
    """The same with little memory, small chunks and guesses."""
    yield from pair_of(stories, 2, **TIGHT)


def alike(pair: Pair, ask: Callable[[LLM], Any]) -> Any:
    """What both say, which is the same."""
    virtual, shared = pair
    wanted = ask(virtual)
    assert ask(shared) == wanted
    return wanted


def told(llm: LLM, params: SamplingParams = PARAMS, texts: tuple[str, ...] = (TEXT,)) -> list[tuple[Any, ...]]:
    return [(found.text, found.logprobs) for found in llm.generate(list(texts), params)]


def test_texts_and_their_numbers(pair: Pair) -> None:
    alike(pair, lambda llm: told(llm, texts=(TEXT, "The sea", "A cat and")))


@pytest.mark.parametrize(
    "changes",
    [
        {"grammar": Grammar("regex", "[0-9]{3,6}")},
        {"n": 3, "temperature": 1.0, "seed": 5},
        {"cache_salt": "a key"},
        {"prompt_logprobs": 2},
        {"temperature": 0.7, "seed": 3, "min_p": 0.1},
    ],
    ids=["grammar", "choices", "salt", "prompt", "sampled"],
)
def test_parameters(pair: Pair, changes: dict[str, Any]) -> None:
    params = replace(PARAMS, **changes)
    alike(pair, lambda llm: [told(llm, params) for _ in range(2)])


def test_adapters(pair: Pair, tmp_path: Path) -> None:
    """Every rank reads its part; one that fits no rank is refused, and leaves nothing behind."""
    tensors = peft_tensors(dict(pair[0].engine.executor.decoder.targets), 4, seed=1, strength=0.3)  # type: ignore[attr-defined]
    path = write_peft(tmp_path / "mine", tensors, r=4)

    def ask(llm: LLM) -> Any:
        llm.add_lora("mine", path)
        mine = told(llm, replace(PARAMS, lora="mine"), (TEXT, "The sea"))
        plain = told(llm)
        llm.remove_lora("mine")
        return mine, plain

    mine, plain = alike(pair, ask)
    assert mine[0] != plain[0]
    free = len(pair[1].engine.adapters._free)
    prepared = pair[1].engine.adapters.prepare(path)
    with pytest.raises(AdapterError, match="was changed while it was loaded"):
        pair[1].engine.adapters.add("other", prepared._replace(digest="another"))
    assert len(pair[1].engine.adapters._free) == free
    alike(pair, told)


def test_hits_of_the_prefix_cache(pair: Pair) -> None:
    def ask(llm: LLM) -> list[tuple[str, int]]:
        replies = [llm.generate([TEXT * 2 + end], PARAMS)[0] for end in ("", "", " Then")]
        return [(reply.text, reply.n_cached_tokens) for reply in replies]

    assert alike(pair, ask)[1][1] > 0


def test_vectors(pair: Pair) -> None:
    virtual, shared = (llm.embed([TEXT, "a"], "mean") for llm in pair)
    np.testing.assert_array_equal(virtual, shared)


def test_guesses_and_chunks(tight: Pair) -> None:
    alike(tight, lambda llm: told(llm, replace(PARAMS, max_tokens=40)))
    assert tight[1].stats().spec_drafts > 0


def test_preempted_requests(tight: Pair) -> None:
    params = replace(PARAMS, max_tokens=60)
    alike(tight, lambda llm: told(llm, params, tuple(f"{TEXT}{i}" for i in range(4))))
    assert tight[1].stats().preemptions > 0


def test_a_batch_is_each_alone(pair: Pair) -> None:
    texts = ("The sea", "A cat and")
    together, alone = (
        alike(pair, lambda llm: told(llm, texts=texts)),
        alike(pair, lambda llm: [told(llm, texts=(text,))[0] for text in texts]),
    )
    assert together == alone


def test_two_models_in_turns(pair: Pair, tight: Pair) -> None:
    for _ in range(2):
        alike(pair, told)
        alike(tight, lambda llm: told(llm, texts=("The sea",)))


def test_each_rank_reads_its_part(pair: Pair, stories: Path) -> None:
    plan = sharding_of(open_model([stories]), 2)
    log = group_of(pair[1]).log
    said = [line for line in log if " MB of weights" in line]
    assert [f"{plan.rank_bytes(rank) / 1e6:.1f} MB of weights" in said[rank] for rank in range(2)] == [True, True]
    assert log[0].startswith("On rank 0: F32 -> ")


@pytest.mark.parametrize(
    ("case", "n_ranks"), full_but([("qwen3_moe", 2), ("deepseek_v3", 2), ("gemma2", 2)], WITH_RANKS)
)
def test_families(case: str, n_ranks: int, tmp_path: Path) -> None:
    folder = write_hf(tmp_path, CASES[case], make_weights(CASES[case]))
    virtual, shared = engines_of(folder, n_ranks)
    try:
        ids = token_ids()
        prompts = [list(ids)[:12], list(reversed(ids))[:7]]
        found = [run(eng, *(submit(eng, prompt, greedy(8)) for prompt in prompts)) for eng in (virtual, shared)]
        assert found[0] == found[1]
    finally:
        shared.close()


# ---- refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tensor_parallel": 3}, r"3 ranks cannot share this llama model: .* work: 1, 2, 4, 8\."),
        ({"virtual_ranks": 2}, "tensor_parallel and virtual_ranks are both set"),
        ({"backend": "reference", "n_threads": None}, "processes of the cpu backend, and not of reference"),
        ({"quantize": "q8_0"}, "quantize is set beside tensor_parallel"),
        ({"ram_budget": "1g"}, "ram_budget is set beside tensor_parallel"),
        ({"kv_host_size": "8m"}, "kv_host_size is set beside tensor_parallel"),
        ({"kv_disk": "nowhere"}, "kv_disk is set beside tensor_parallel"),
        ({"tensor_parallel": 65}, "tensor_parallel"),
    ],
)
def test_what_ranks_do_not_have_is_refused(stories: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        opened(stories, **{"tensor_parallel": 2, **options})


def test_drafts_of_a_model_are_refused(stories: Path) -> None:
    with pytest.raises(ConfigError, match="spec_draft is set beside tensor_parallel"):
        opened(stories, tensor_parallel=2, spec_draft=str(stories))


def test_sessions_and_pages_are_refused(stories: Path, pair: Pair) -> None:
    source = open_model([stories])
    config = EngineConfig(tensor_parallel=2, **SIZES)
    with pytest.raises(ConfigError, match="tensor_parallel has no sessions"):
        load_engine(source, Tokenizer.from_gguf(source.config), config, whole_texts=2)
    with pytest.raises(ConfigError, match="hand out none: sessions and snapshots run on one rank"):
        pair[1].engine.executor.pages.read([0])


def test_a_model_in_memory_is_refused(stories: Path) -> None:
    source = open_model(stories.read_bytes())
    with pytest.raises(LoadError, match="this one is in memory: give its path"):
        load_engine(source, Tokenizer.from_gguf(source.config), EngineConfig(tensor_parallel=2, **SIZES))
