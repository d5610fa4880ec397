"""Speculation from the door: the library, the command line and the server, and what is refused in one sentence."""

from dataclasses import replace
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest

import story_model
from engines import loaded
from tahr import LLM, SamplingParams, SpeculativeEngine
from tahr.cli.main import main
from tahr.config import EngineConfig
from tahr.engine.speculation.draft_model import DraftModelProposer
from tahr.engine.speculation.ngram import NgramProposer
from tahr.errors import ConfigError, ModelNotFound, TokenizerError
from tahr.loading.speculation import Draft, check_context, draft_windows

TEXT = "Once upon a time there was a little girl. Once upon a time there was"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


def llm(path: Path, **settings: Any) -> LLM:
    return LLM(str(path), context_size=256, n_threads=1, **settings)


def test_replies_are_those_without_it(stories: Path) -> None:
    plain = llm(stories).generate(TEXT, GREEDY)
    for settings in (
        {"spec_ngram": True},
        {"spec_draft": str(stories)},
        {"spec_draft": str(stories), "spec_tokens": 7},
    ):
        ours = llm(stories, **settings)
        assert ours.engine.speculator
        ours.engine.speculator.adapts = False
        reply = ours.generate(TEXT, GREEDY)
        assert (reply.text, reply.token_ids) == (plain.text, plain.token_ids)
        counters = ours.stats()
        assert counters.spec_draft_tokens >= counters.spec_accepted_tokens == reply.stats.n_accepted_tokens
        assert counters.spec_draft_tokens == reply.stats.n_draft_tokens > 0
        # Words that came before need not come again; a model agrees with itself.
        assert counters.spec_accepted_tokens > 0 or "spec_ngram" in settings
        assert 0 <= counters.spec_acceptance <= 1 <= counters.spec_draft_length
        assert counters.tokens_generated == 24


def test_a_request_may_say_no(stories: Path) -> None:
    ours = llm(stories, spec_draft=str(stories))
    assert ours.engine.speculator
    ours.engine.speculator.adapts = False
    ours.generate(TEXT, replace(GREEDY, speculative=False))
    assert ours.stats().spec_draft_tokens == 0


@pytest.mark.parametrize(
    "options",
    [{"thinking_budget": 5}, {"mirostat": 2, "temperature": 1.0}],
)
def test_requests_whose_tokens_others_decide_are_not_speculated_on(stories: Path, options: dict[str, Any]) -> None:
    ours = llm(stories, spec_draft=str(stories))
    assert ours.engine.speculator
    ours.engine.speculator.adapts = False
    ours.generate(TEXT, replace(GREEDY, **options))
    assert ours.stats().spec_draft_tokens == 0


def test_off_is_off(stories: Path) -> None:
    ours = llm(stories, spec_draft="/there/is/no/such/file.gguf", spec_ngram=True, spec_tokens=3, spec_off=True)
    assert ours.engine.speculator is None


def test_defaults(stories: Path) -> None:
    assert llm(stories).engine.speculator is None
    ngram, draft = llm(stories, spec_ngram=True).engine, llm(stories, spec_draft=str(stories)).engine
    assert ngram.speculator and isinstance(ngram.speculator.proposer, NgramProposer) and ngram.speculator.n_most == 8
    assert draft.speculator and isinstance(draft.speculator.proposer, DraftModelProposer)
    assert draft.speculator.n_most == 4


def test_the_draft_model_lives_in_the_same_pages_and_budget(stories: Path) -> None:
    n_bytes = 1 << 20
    plain, ours = (llm(stories, kv_bytes=n_bytes, **more).engine for more in ({}, {"spec_draft": str(stories)}))
    assert ours.executor.kv.n_bytes <= n_bytes
    assert len(ours.executor.kv.layers) == 2 * len(plain.executor.kv.layers)
    assert ours.scheduler.pools[0].page_bytes == 2 * plain.scheduler.pools[0].page_bytes
    assert len(ours.scheduler.pools) == 1


# ---- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 65, 10_000, 2.5, True])
def test_how_many_tokens(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"spec_tokens is .* must be a whole number at least 1 and at most 64"):
        EngineConfig(spec_ngram=True, spec_tokens=value)


def test_two_proposers_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match="both set"):
        EngineConfig(spec_ngram=True, spec_draft="a")


def test_tokens_without_a_proposer(stories: Path) -> None:
    with pytest.raises(ConfigError, match="nothing guesses"):
        llm(stories, spec_tokens=3)


def test_a_missing_draft(stories: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"nope\.gguf"):
        llm(stories, spec_draft="/nope.gguf")


def test_another_vocabulary(stories: Path, tmp_path: Path) -> None:
    other = story_model.write(tmp_path)
    if loaded(other)[1].vocab_bytes() == loaded(stories)[1].vocab_bytes():
        pytest.skip("the model of the tests is the story model itself")
    with pytest.raises(ConfigError, match="vocabulary is another one"):
        llm(stories, spec_draft=str(other))


def test_a_draft_that_lacks_rows_of_its_vocabulary(stories: Path, tmp_path: Path) -> None:
    config, data = loaded(stories)[0].config, stories.read_bytes()
    for name in (b"token_embd.weight", b"output.weight"):
        whole, cut = (name + pack("<IQQ", 2, config.width, n) for n in (config.n_vocab, config.n_vocab - 12))
        data = data.replace(whole, cut)
    draft = tmp_path / "cut.gguf"
    draft.write_bytes(data)
    with pytest.raises(TokenizerError, match=r"cut\.gguf has 512 tokens, but the model knows 500"):
        llm(stories, spec_draft=str(draft))
    with pytest.raises(TokenizerError, match=r"cut\.gguf has 512 tokens, but the model knows 500"):
        SpeculativeEngine(str(stories), str(draft))


def test_a_smaller_context_and_a_state(stories: Path) -> None:
    draft = Draft("small", loaded(stories)[0].decoder)
    with pytest.raises(ConfigError, match="small was trained for 512 tokens, but the context has 8192"):
        check_context(draft, 8192, has_states=False)
    with pytest.raises(ConfigError, match="keeps a state"):
        check_context(None, 64, has_states=True)
    check_context(draft, 512, has_states=False)


def test_a_draft_that_looks_further_back_than_the_model() -> None:
    draft: Any = SimpleNamespace(name="far", decoder=SimpleNamespace(windows=(0, 8)))
    assert draft_windows(draft, [16, 0]) == [0, 0]
    with pytest.raises(ConfigError, match="looks further back than the 16 tokens"):
        draft_windows(draft, [16, 8])


def test_options_of_the_command_line(capsys: pytest.CaptureFixture[str], stories: Path) -> None:
    requested = [
        "serve",
        str(stories),
        "--spec-draft",
        "x",
        "--spec-tokens",
        "3",
        "--spec-off",
        "--effective-config-json",
    ]
    assert main(requested) == 0
    told = capsys.readouterr().out
    for line in ('"engine.spec_draft"', '"engine.spec_tokens"', '"engine.spec_off"'):
        assert line in told
    assert main(["run", str(stories), "-p", "hi", "--spec-draft", "/nope.gguf", "--quiet"]) != 0
    assert "nope.gguf" in capsys.readouterr().err
    assert main(["run", str(stories), "-p", "hi", "--spec-ngram", "--spec-tokens", "10000", "--quiet"]) != 0
    assert "at most 64" in capsys.readouterr().err
