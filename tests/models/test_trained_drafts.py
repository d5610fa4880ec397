"""A drafter that was trained for the model reads the rows it should, whatever else happens, and changes no reply."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drafter_files import TAPS, make_arrays, write_drafter
from drafter_runs import DrafterRuns, config_for, tapped_rows, taught, taught_draft
from engines import alone, here, loaded, page_bytes, run, submit
from engines import greedy as greedily
from lora_files import peft_tensors, write_peft
from speculating import speculating
from tahr import LLM, SamplingParams, SpeculativeEngine
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.engine.speculation.row_rings import MOST_BEHIND, RowRings
from tahr.engine.speculation.speculator import Speculator
from tahr.engine.speculation.trained import TrainedProposer
from tahr.errors import ConfigError
from tahr.executor.output import Output
from tahr.grammar import Grammar
from tahr.loading.builder import build_engine
from tahr.loading.speculation import Draft
from tahr.models.loader.drafters import LoadedDrafter, load_drafter
from tahr.models.loader.load import open_model
from test_engine import prompts

TEXT = "Once upon a time there was a little dog who had a red ball. " * 2
PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
Drafts = list[tuple[list[int], list[int]]]  # texts, and what was guessed of each


# ---- rows and entries ---------------------------------------------------------------------------------------------


def noted(eng: Engine) -> Drafts:
    """What the engine guesses from now on."""
    assert eng.speculator
    found: Drafts = []
    propose = eng.speculator.proposer.propose

    def watched(requests: Any) -> None:
        propose(requests)
        found.extend((list(seq.tokens), list(seq.ahead.drafts)) for seq, _ in requests)

    eng.speculator.proposer.propose = watched  # type: ignore[method-assign]
    return found


def guesses_alone(path: Path, text: list[int], k: int) -> list[int]:
    """What the drafter guesses, given every row of the text at once."""
    draft, decoder = taught_draft(path), loaded(path)[0].decoder
    assert draft.drafter and draft.tokens is not None
    runs = DrafterRuns(LoadedDrafter(draft.drafter, draft.tokens, {}, 0, 0), here())
    rows = tapped_rows(decoder, here(), text, TAPS)
    logits = runs.follow(0, text[1:], rows[: len(text) - 1])[-1]
    found = [int(draft.tokens[np.argmax(logits)])]
    while len(found) < k:
        logits = runs.chain(len(text) - 2 + len(found), found[-1])
        found.append(int(draft.tokens[np.argmax(logits)]))
    return found


def check_drafts(path: Path, found: Drafts, share: float = 1.0) -> None:
    """So many of the guesses are those that the drafter makes alone."""
    some = [(text, drafts) for text, drafts in found if drafts][::3]
    same = sum(guesses_alone(path, text, len(drafts)) == drafts for text, drafts in some)
    assert len(some) > 5 and same >= share * len(some)


SETTINGS: list[dict[str, Any]] = [{}, {"prefill_chunk_size": 7}, {"max_batch_size": 2}, {"page_size": 16}]


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: "-".join(each) or "plain")
def test_guesses_are_those_of_the_drafter_alone(stories: Path, settings: dict[str, Any], late: bool) -> None:
    eng = speculating(stories, "trained", 3, late=late, prefix_cache=False, **settings)
    found = noted(eng)
    run(eng, *(submit(eng, prompt, greedily(20)) for prompt in prompts(stories)))
    check_drafts(stories, found)


def test_guesses_of_preempted_texts(stories: Path) -> None:
    sizes = {"kv_bytes": page_bytes(stories) * 2 * 14, "context_size": 96, "max_batch_size": 6}
    eng = speculating(stories, "trained", 3, **sizes)
    found = noted(eng)
    run(eng, *(submit(eng, prompt, greedily(40)) for prompt in prompts(stories)))
    assert eng.snapshot().preemptions
    check_drafts(stories, found, share=0.9)  # pages of the prefix cache may lack the last entries of a text


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_guesses_after_a_prefix_that_was_cached(stories: Path, late: bool) -> None:
    eng = speculating(stories, "trained", 3, late=late)
    every = prompts(stories)
    run(eng, *(submit(eng, prompt, greedily(4)) for prompt in every))
    found = noted(eng)
    sequences = [submit(eng, prompt, greedily(16)) for prompt in every]
    run(eng, *sequences)
    assert any(seq.result.stats.n_cached_tokens for seq in sequences)
    check_drafts(stories, found, share=0.7)


class Seldom(Speculator):
    """Guesses now and then only, as beside many others."""

    def _lengths(self, able: Any, n_seqs: int) -> list[int]:
        assert all(self._state(seq) for seq in able)
        return [3 if len(seq.tokens) % 50 < 3 else 0 for seq in able]


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_entries_are_computed_before_their_rows_go(stories: Path, late: bool) -> None:
    """Between two guesses there are more tokens than a ring holds rows."""
    eng = speculating(stories, "trained", 3, late=late, prefix_cache=False)
    assert eng.speculator
    eng.speculator = Seldom(eng.speculator.proposer, 3)
    found = noted(eng)
    assert RowRings(1, 1, 4).size < 47
    run(eng, *(submit(eng, prompt, greedily(150)) for prompt in prompts(stories)[:2]))
    some = [(text, drafts) for text, drafts in found if drafts]
    assert some and all(guesses_alone(stories, text, len(drafts)) == drafts for text, drafts in some)


def test_choices_go_on_from_the_entries_of_their_prompt(stories: Path) -> None:
    eng = speculating(stories, "trained", 3)
    params = SamplingParams(temperature=0.9, max_tokens=30, ignore_eos=True, seed=5, n=3)
    first = submit(eng, prompts(stories)[0], params)
    run(eng, first, *first.queueing.forks)
    assert eng.snapshot().spec_draft_tokens and eng.speculator and not eng.speculator.failed


def test_rings_are_taken_back_from_those_who_have_ended(stories: Path) -> None:
    eng = speculating(stories, "trained", 3, max_batch_size=2)
    for _ in range(3):
        run(eng, *(submit(eng, prompt, greedily(6)) for prompt in prompts(stories)))
    assert eng.speculator and not eng.speculator.failed
    assert eng.snapshot().spec_accepted_tokens


def test_a_text_without_a_ring_is_not_guessed_of(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowRings, "take", lambda self, seq: None)
    eng = speculating(stories, "trained", 3)
    seq = submit(eng, prompts(stories)[0], greedily(8))
    run(eng, seq)
    assert eng.snapshot().spec_draft_tokens == 0


def test_a_drafter_that_fails_while_it_follows_harms_nobody(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eng = speculating(stories, "trained", 3)

    def broken(*args: Any) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(TrainedProposer, "computed", broken)
    seq = submit(eng, prompts(stories)[0], greedily(8))
    run(eng, seq)
    assert eng.speculator and eng.speculator.failed and seq.n_generated == 8


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_drafter_whose_weights_are_no_numbers_changes_no_reply(stories: Path, tmp_path: Path, value: float) -> None:
    decoder = loaded(stories)[0].decoder
    config = config_for(decoder)
    arrays = {name: np.full_like(values, value) for name, values in make_arrays(config).items()}
    found = load_drafter(open_model([], write_drafter(tmp_path, config, arrays)), here(), decoder)
    draft = Draft("wild", found.drafter, 0, found.tokens)
    eng = build_engine(here(), decoder, EngineConfig(context_size=256, page_size=8), draft=draft)[0]
    assert eng.speculator
    eng.speculator.adapts = False
    assert run(eng, submit(eng, prompts(stories)[0])) == [alone(stories, prompts(stories)[0])]


def test_rows_of_a_ring() -> None:
    """Slots by position: of a chunk, of its end, and of what came before."""
    owner: Any = type("Owner", (), {"id": 7})()
    rings = RowRings(n_tokens=100, n_seqs=2, n_decode_tokens=4)
    ring = rings.take(owner)
    assert ring and rings.size == MOST_BEHIND + 12
    targets = rings.targets(ring, 0, 20, 3).tolist()
    assert targets[:16] == list(range(3, 19)) and min(targets[16:]) >= 100 and len(set(targets)) == 20
    assert rings.slots(owner, 0, 20).tolist() == targets
    rings.begin_step()
    assert rings.slots(owner, 0, 20).tolist() == [-1] * 16 + targets[16:]
    more = rings.targets(ring, 20, 2, 0).tolist()
    assert rings.slots(owner, 16, 22).tolist() == targets[16:] + more
    rings.used(owner, 21)
    assert rings.slots(owner, 18, 23).tolist() == [-1, -1, *more, -1]
    assert rings.own_slot(owner, 22) not in more


# ---- beside everything else ---------------------------------------------------------------------------------------


def opened(path: Path, drafts: bool, **options: Any) -> LLM:
    given = {"context_size": 256, "page_size": 8, "n_threads": 1, **options}
    llm = LLM(str(path), config=EngineConfig(spec_draft=str(taught(path)) if drafts else None, **given))
    if llm.engine.speculator:
        llm.engine.speculator.adapts = False
    return llm


def same(path: Path, ask: Callable[[LLM], Any], **options: Any) -> Any:
    """What is said with a drafter, which is what is said without."""
    with opened(path, True, **options) as ours, opened(path, False, **options) as plain:
        found = ask(ours)
        assert found == ask(plain)
        assert ours.stats().spec_accepted_tokens and ours.engine.speculator and not ours.engine.speculator.failed
        return found


def told(llm: LLM, params: SamplingParams = PARAMS, texts: tuple[str, ...] = (TEXT, "The sea", "A cat and")) -> Any:
    return [(found.text, found.token_ids) for found in llm.generate(list(texts), params)]


def test_adapters(stories: Path, tmp_path: Path) -> None:
    def ask(llm: LLM) -> Any:
        linears = llm.engine.executor.decoder.linears
        llm.add_lora("mine", write_peft(tmp_path / "mine", peft_tensors(linears, 4, seed=1, strength=0.3), r=4))
        return told(llm, replace(PARAMS, lora="mine")) + told(llm)

    same(stories, ask)


@pytest.mark.parametrize(
    "changes",
    [
        {"grammar": Grammar("regex", "[a-z ]{30,60}"), "ignore_eos": False},
        {"n": 3, "temperature": 0.7, "seed": 5, "max_tokens": 60},
        {"cache_salt": "a key"},
    ],
    ids=["grammar", "choices", "salt"],
)
def test_parameters(stories: Path, changes: dict[str, Any]) -> None:
    params = replace(PARAMS, **changes)
    same(stories, lambda llm: [told(llm, params) for _ in range(2)])


def test_batches_are_each_alone(stories: Path) -> None:
    texts = (TEXT, "The sea", "A cat and")

    def ask(llm: LLM) -> Any:
        together = told(llm, texts=texts)
        assert together == [told(llm, texts=(text,))[0] for text in texts]
        return together

    same(stories, ask, deterministic=True)


def test_vectors_beside_replies(stories: Path) -> None:
    """Steps for hidden rows store nothing, and replies go on."""
    eng = speculating(stories, "trained", 3)
    first = submit(eng, prompts(stories)[0], greedily(30))
    rows: list[np.ndarray] = []
    eng.submit_rows([5, 6, 7], lambda x: rows.append(x.copy()), Output.HIDDEN, 0)
    plain = speculating(stories, "ngram", 3)
    assert run(eng, first) == run(plain, submit(plain, prompts(stories)[0], greedily(30)))
    assert sum(map(len, rows)) == 3 and eng.snapshot().spec_accepted_tokens


def test_two_models_in_turns(stories: Path) -> None:
    with opened(stories, False) as plain:
        wanted = [told(plain), told(plain, texts=("The sea",))]
    with opened(stories, True) as one, opened(stories, True) as two:
        for _ in range(2):
            assert [told(one), told(two, texts=("The sea",))] == wanted


def test_it_is_loaded_by_its_name(stories: Path) -> None:
    with opened(stories, True) as llm:
        proposer = llm.engine.speculator and llm.engine.speculator.proposer
        assert isinstance(proposer, TrainedProposer) and llm.engine.speculator
        assert llm.engine.speculator.n_most == 4
        assert len(llm.engine.executor.kv.layers) == loaded(stories)[0].config.n_layers + 1


def test_texts_of_two_models_take_no_drafter(stories: Path) -> None:
    with pytest.raises(ConfigError, match="a SpeculativeEngine takes a smaller model"):
        SpeculativeEngine(str(stories), str(taught(stories)))


OTHER_WORDS = {
    "model": {"type": "BPE", "vocab": {chr(97 + i): i for i in range(26)}, "merges": []},
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "added_tokens": [],
}


def test_a_tokenizer_beside_it_is_compared(stories: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(taught(stories), tmp_path / "copied")
    (copied / "tokenizer.json").write_text(json.dumps(OTHER_WORDS))
    with pytest.raises(ConfigError, match="its vocabulary is another one"):
        LLM(str(stories), config=EngineConfig(context_size=64, spec_draft=str(copied)))


def test_the_head_of_the_model_is_shared_where_it_has_none(stories: Path, tmp_path: Path) -> None:
    decoder = loaded(stories)[0].decoder
    config = config_for(decoder)
    arrays = make_arrays(config)
    del arrays["lm_head.weight"]
    found = load_drafter(open_model([], write_drafter(tmp_path, config, arrays)), here(), decoder)
    assert found.drafter.head is decoder.head and found.tokens is None
