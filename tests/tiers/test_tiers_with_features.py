"""Pages from places beside everything else a request may ask for: the same replies as without places."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines import engine, greedy, loaded, submit
from lora_files import random_adapter
from tahr import LLM, SamplingParams
from tahr.cli.chat.prefix_files import PrefixFiles
from tahr.engine.engine import Engine
from tahr.errors import ConfigError
from tahr.grammar import Grammar
from tahr.loading import kv_tiers
from tahr.models.lora import AdapterTarget
from tiered import disk_of, reply, run, tiered

PROMPT = [1 + (i * i * 7 + 3 * i) % 200 for i in range(61)]
TEXT = "Once upon a time there was a little dog who had a red ball. " * 6
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_tiers, "MOST_TOKENS", 32)


def with_adapter(eng: Engine, path: Path, name: str, seed: int) -> Engine:
    decoder = loaded(path)[0].decoder
    adapter = random_adapter(AdapterTarget("stories", decoder.config, decoder.linears), seed, rank=3, strength=0.5)
    eng.adapters.add(name, eng.executor.adapters.bring(adapter), 1.0)
    return eng


def test_adapters_have_pages_of_their_own(stories: Path, tmp_path: Path) -> None:
    """Told apart by content: another adapter under the same name finds nothing."""
    replies = []
    for seed, n_cached in ((1, 0), (2, 0), (1, 48)):
        eng = with_adapter(tiered(stories, tmp_path / "kv"), stories, "mine", seed)
        seq = submit(eng, PROMPT, greedy(12, lora="mine"))
        replies += run(eng, seq)
        assert seq.result.stats.n_cached_tokens == n_cached and disk_of(eng).flush(20)
    assert replies[0] == replies[2] != replies[1]
    assert reply(tiered(stories, tmp_path / "kv"), PROMPT)[2] == 0


def test_choices_of_a_prompt_whose_pages_come(stories: Path, tmp_path: Path) -> None:
    params = greedy(12, n=3)
    eng = engine(stories)
    first = submit(eng, PROMPT, params)
    wanted = run(eng, first, *first.queueing.forks)
    for _ in range(2):
        eng = tiered(stories, tmp_path / "kv")
        first = submit(eng, PROMPT, params)
        assert run(eng, first, *first.queueing.forks) == wanted and disk_of(eng).flush(20)
    assert first.result.stats.n_cached_tokens == 48


@pytest.mark.parametrize(
    "changes",
    [{"grammar": Grammar("regex", "[0-9]{3,6}")}, {"temperature": 1.0, "seed": 5}, {"prompt_logprobs": 2}],
    ids=["grammar", "seed", "prompt_logprobs"],
)
def test_parameters(stories: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    params = replace(PARAMS, **changes)
    wanted = LLM(stories).generate([TEXT], params)[0]
    for _ in range(2):
        with LLM(stories, kv_disk=str(tmp_path / "kv")) as llm:
            found = llm.generate([TEXT], params)[0]
            assert (found.text, found.logprobs) == (wanted.text, wanted.logprobs)
            assert found.prompt_logprobs == wanted.prompt_logprobs
    assert found.n_cached_tokens == (0 if "prompt_logprobs" in changes else 96)


def test_drafts_of_a_model_are_refused(stories: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a draft model writes to pages after they are full"):
        LLM(stories, kv_disk=str(tmp_path / "kv"), spec_draft=str(stories))


def test_a_conversation_goes_on_after_a_restart(stories: Path, tmp_path: Path) -> None:
    """The second turn finds the first, its reply included."""

    def turns(**options: Any) -> list[str]:
        texts = [TEXT]
        for _ in range(3):
            with LLM(stories, **options) as llm:
                found = llm.generate([texts[-1]], replace(PARAMS, max_tokens=40))[0]
                texts.append(texts[-1] + found.text + " Then")
                cached.append(found.n_cached_tokens)
        return texts

    cached: list[int] = []
    assert turns(kv_disk=str(tmp_path / "kv")) == turns()
    assert cached[0] == 0 and 0 < cached[1] < cached[2] and cached[3:] == [0, 0, 0]


def test_prefix_files_and_places_find_the_same_text(stories: Path, tmp_path: Path) -> None:
    wanted = LLM(stories).generate([TEXT], PARAMS)[0]
    with LLM(stories, kv_host_size="1m") as llm:
        llm.generate([TEXT], PARAMS)
        files = PrefixFiles(llm, lambda: "weights")
        content = files.copy(tuple(llm.tokenizer.encode(TEXT)))
    with LLM(stories, kv_disk=str(tmp_path / "kv"), kv_host_size="1m") as llm:
        assert PrefixFiles(llm, lambda: "weights").restore(content) > 0
        found = llm.generate([TEXT], PARAMS)[0]
        assert (found.text, found.logprobs) == (wanted.text, wanted.logprobs) and found.n_cached_tokens > 0


def test_hidden_rows_of_a_text_whose_pages_are_kept(stories: Path, tmp_path: Path) -> None:
    wanted = LLM(stories).embed([TEXT], "mean")
    for _ in range(2):
        with LLM(stories, kv_disk=str(tmp_path / "kv"), kv_host_size="1m") as llm:
            llm.generate([TEXT], PARAMS)
            np.testing.assert_array_equal(llm.embed([TEXT], "mean"), wanted)


def test_two_models_on_one_directory(stories: Path, tmp_path: Path) -> None:
    """Files that differ in a byte are two models."""
    copied = tmp_path / "copied.gguf"
    copied.write_bytes(stories.read_bytes() + bytes(32))
    models = [stories, copied]
    wanted = [LLM(model).generate([TEXT], PARAMS)[0].text for model in models]
    for n_cached in (0, 96):
        for model, text in zip(models, wanted, strict=True):
            with LLM(model, kv_disk=str(tmp_path / "kv")) as llm:
                found = llm.generate([TEXT], PARAMS)[0]
                assert (found.text, found.n_cached_tokens) == (text, n_cached)
    assert len(list((tmp_path / "kv").glob("*/"))) == 2


def test_deterministic_replies(stories: Path, tmp_path: Path) -> None:
    wanted = LLM(stories, deterministic=True).generate([TEXT], PARAMS)[0]
    for _ in range(2):
        with LLM(stories, deterministic=True, kv_disk=str(tmp_path / "kv")) as llm:
            found = llm.generate([TEXT], PARAMS)[0]
            assert (found.text, found.logprobs) == (wanted.text, wanted.logprobs)
