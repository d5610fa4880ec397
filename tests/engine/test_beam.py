"""Beam search: against stubs with known best paths, against greedy, and against a search that recomputes everything."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from engines import engine as engine_of
from tahr import BeamSearchConfig, InferenceConfig, InferenceEngine
from tahr.errors import ConfigError
from tahr.grammar import Grammar
from tahr.grammar.call_grammar import CallGrammar, call_grammar
from tahr.library.beam import EngineBeams, Hypothesis, beam_search
from tahr.library.inference.session import Session
from tahr.text.replies.deltas import tool_calls_of
from tahr.text.tool_calls.call_formats import BY_NAME
from tahr.text.tool_calls.parser import ReplyFormat, parsed
from tahr.text.tool_calls.tools import tools_of

EOS = 0


class Table:
    """Probabilities of the next token by the tokens so far; what is not listed is impossible."""

    def __init__(self, table: dict[tuple[int, ...], dict[int, float]], n_vocab: int = 6):
        self.table, self.n_vocab = table, n_vocab
        self.texts: list[tuple[int, ...]] = []
        self.widths: list[int] = []

    def begin(self, tokens: Sequence[int]) -> np.ndarray:
        self.texts = [tuple(tokens)]
        return self.rows()

    def extend(self, choices: Sequence[tuple[int, int]]) -> np.ndarray:
        self.texts = [(*self.texts[beam], token) for beam, token in choices]
        self.widths.append(len(choices))
        return self.rows()

    def rows(self) -> np.ndarray:
        rows = np.full((len(self.texts), self.n_vocab), -np.inf, np.float32)
        for row, text in zip(rows, self.texts, strict=True):
            for token, p in self.table.get(text, {EOS: 1.0}).items():
                row[token] = math.log(p)
        return rows


# Greedy takes 1 (0.6) and ends with 0.6 * 0.3; the best path begins with 2: 0.4 * 0.9.
TRAP = {
    (5,): {1: 0.6, 2: 0.4},
    (5, 1): {3: 0.3, 4: 0.3, 2: 0.2, 1: 0.2},
    (5, 2): {3: 0.9, 4: 0.1},
}


def is_eos(token: int) -> bool:
    return token == EOS


def test_finds_what_greedy_misses() -> None:
    (greedy,) = beam_search(Table(TRAP), [5], BeamSearchConfig(beam_width=1), is_eos)
    best = beam_search(Table(TRAP), [5], BeamSearchConfig(beam_width=2), is_eos)[0]
    assert greedy.tokens == (5, 1, 3, EOS)
    assert best.tokens == (5, 2, 3, EOS)
    assert best.finished
    assert best.logprob_sum == pytest.approx(math.log(0.36), abs=1e-6)


def test_sorted_by_score() -> None:
    config = BeamSearchConfig(beam_width=4)
    found = beam_search(Table(TRAP), [5], config, is_eos)
    scores = [h.score(config.length_penalty) for h in found]
    assert len(found) == 4
    assert scores == sorted(scores, reverse=True)
    assert all(h.tokens[0] == 5 and h.n_prompt == 1 for h in found)


# A short text of probability 0.5, and a long one of 0.4: five tokens.
LENGTHS = {(5,): {EOS: 0.5, 1: 0.4, 2: 0.1}, (5, 1): {1: 1.0}, (5, 1, 1): {1: 1.0}, (5, 1, 1, 1): {1: 1.0}}


@pytest.mark.parametrize(("penalty", "best"), [(0.0, (5, EOS)), (1.0, (5, 1, 1, 1, 1, EOS)), (-1.0, (5, EOS))])
def test_the_length_penalty_chooses(penalty: float, best: tuple[int, ...]) -> None:
    config = BeamSearchConfig(beam_width=2, length_penalty=penalty, early_stopping=False, max_new_tokens=8)
    assert beam_search(Table(LENGTHS), [5], config, is_eos)[0].tokens == best


def test_early_stopping_stops_early() -> None:
    # Two texts end at once; the best one, which goes on, would be found only by searching on.
    table = {(5,): {EOS: 0.3, 1: 0.6, 2: 0.1}, (5, 1): {EOS: 0.4, 3: 0.6}, (5, 1, 3): {EOS: 1.0}}
    eager, patient = Table(table), Table(table)
    first = beam_search(eager, [5], BeamSearchConfig(beam_width=2), is_eos)
    second = beam_search(patient, [5], BeamSearchConfig(beam_width=2, early_stopping=False), is_eos)
    assert [h.tokens for h in first] == [(5, 1, EOS), (5, EOS)]
    assert second[0].tokens == (5, 1, 3, EOS)
    assert len(eager.widths) < len(patient.widths)


def test_unfinished_texts_count_when_time_is_up() -> None:
    found = beam_search(Table(LENGTHS), [5], BeamSearchConfig(beam_width=3, max_new_tokens=2), is_eos)
    assert {(h.tokens, h.finished) for h in found} >= {((5, 1, 1), False), ((5, EOS), True)}
    assert max(h.n_generated for h in found) == 2


def test_nothing_generated_scores_zero() -> None:
    table = Table(TRAP)
    (only,) = beam_search(table, [5], BeamSearchConfig(max_new_tokens=0), is_eos)
    assert only == Hypothesis((5,), 1)
    assert only.score(1.0) == 0
    assert table.texts == []  # nothing was computed either


@pytest.mark.parametrize(
    ("field", "value"), [("beam_width", 0), ("max_new_tokens", -1), ("length_penalty", math.nan), ("early_stopping", 1)]
)
def test_bad_settings_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        BeamSearchConfig(**{field: value})  # type: ignore[arg-type]


def test_defaults() -> None:
    assert BeamSearchConfig() == BeamSearchConfig(4, 256, 1.0, True)


# ---- with a model -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(stories: Path) -> InferenceEngine:
    engine = InferenceEngine(InferenceConfig(str(stories), num_threads=2, kv_dtype="f32"))
    engine.load_model()
    return engine


class Recomputing:
    """The model without any sharing: every text from its beginning at every step."""

    def __init__(self, engine: InferenceEngine):
        self.engine = engine
        self.texts: list[list[int]] = []

    def begin(self, tokens: Sequence[int]) -> np.ndarray:
        self.texts = [list(tokens)]
        return self.rows()

    def extend(self, choices: Sequence[tuple[int, int]]) -> np.ndarray:
        self.texts = [[*self.texts[beam], token] for beam, token in choices]
        return self.rows()

    def rows(self) -> np.ndarray:
        rows = []
        for text in self.texts:
            self.engine.truncate(0)
            rows.append(self.engine.forward_prefill(text, 0))
        return np.array(rows)


PROMPT = "Once upon a time there was a little dog. The dog saw a big red ball in the park and"


def test_width_one_is_greedy(engine: InferenceEngine) -> None:
    tokens = engine.tokenize(PROMPT)
    (found,) = engine.beam_generate(tokens, BeamSearchConfig(beam_width=1, max_new_tokens=40))
    greedy, logits = list(tokens), Recomputing(engine).begin(tokens)[0]
    while len(greedy) < len(tokens) + 40:
        greedy.append(int(logits.argmax()))
        logits = engine.forward_one(greedy[-1])
    assert list(found.tokens) == greedy


@pytest.mark.parametrize("n_prompt", [5, 31, 32])  # inside a page, at its end, at the beginning of the next
def test_sharing_pages_changes_nothing(engine: InferenceEngine, n_prompt: int) -> None:
    tokens = engine.tokenize(PROMPT)[:n_prompt]
    config = BeamSearchConfig(beam_width=4, max_new_tokens=40)
    found = engine.beam_generate(tokens, config)
    expected = beam_search(Recomputing(engine), tokens, config, engine.is_eos)
    assert [h.tokens for h in found] == [h.tokens for h in expected]
    np.testing.assert_allclose([h.logprob_sum for h in found], [h.logprob_sum for h in expected], atol=1e-3)
    assert len({h.tokens for h in found}) == 4


def test_one_step_serves_all_beams_and_pages_come_back(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, tokens = engine._model.engine, engine.tokenize(PROMPT)
    engine.truncate(0)
    beams, widths, launch = EngineBeams(inner), list[int](), inner.steps.launch
    monkeypatch.setattr(inner.steps, "launch", lambda step, *_: widths.append(len(step.work)) or launch(step))
    beam_search(beams, tokens, BeamSearchConfig(beam_width=3, max_new_tokens=20), lambda _: False)
    assert widths == [1] + [3] * 19
    tables = [beam.sequence.memory.tables[0] for beam in beams.beams]
    inner.scheduler.pools[0].check(table.held for table in tables)
    shared = set.intersection(*(set(table.held) for table in tables))
    assert len(shared) >= len(tokens) // 32  # the prompt's full pages exist once
    beams.close()
    assert not inner.busy and inner.scheduler.pools[0].n_used == 0


def test_beams_without_memory_for_all_take_turns(stories: Path) -> None:
    small = InferenceEngine(InferenceConfig(str(stories), context_size=40))  # two pages a text: four in all
    small.load_model()
    tokens, config = small.tokenize(PROMPT), BeamSearchConfig(beam_width=6, max_new_tokens=8)
    small.prefill(tokens)
    found = small.beam_generate(tokens, config)
    expected = beam_search(Recomputing(small), tokens, config, small.is_eos)
    assert [h.tokens for h in found] == [h.tokens for h in expected]
    assert small._model.engine.scheduler.n_preempted > 0


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_beams_without_a_place_for_all_take_turns(stories: Path, late: bool) -> None:
    """There are pages for all of them, but sequences that stay hold both places when the next one comes."""
    prompt, config = [1, 403, 407, 261], BeamSearchConfig(beam_width=4, max_new_tokens=6)
    found = []
    for n_places in (2, 16):
        few = engine_of(stories, late=late, max_batch_size=n_places)
        session, beams = Session(few, few), EngineBeams(few)
        session.feed([1, 400])
        found.append(beam_search(beams, prompt, config, is_eos))
        beams.close()
        session.truncate(0)
        assert not few.busy and few.scheduler.pools[0].n_used == 0
    assert found[0] == found[1] and len(found[0]) == 4


def test_the_text_in_memory_stays(engine: InferenceEngine) -> None:
    engine.truncate(0)
    engine.prefill([1, 2, 3])
    before = engine.forward_one(4)
    engine.beam_generate(engine.tokenize(PROMPT), BeamSearchConfig(max_new_tokens=3))
    assert engine.kv_cache_seq_len() == 4
    engine.truncate(3)
    np.testing.assert_array_equal(engine.forward_one(4), before)


def test_ends_as_the_caller_says(engine: InferenceEngine) -> None:
    tokens = engine.tokenize("Once upon a time")
    comma = engine.tokenize("Once upon a time,")[-1]
    for eos in (comma, lambda token: token == comma):
        best = engine.beam_generate(tokens, BeamSearchConfig(beam_width=2, max_new_tokens=8), eos)[0]
        assert best.tokens[-1] == comma
        assert best.finished


def test_the_context_bounds_the_search(stories: Path) -> None:
    small = InferenceEngine(InferenceConfig(str(stories), context_size=16))
    small.load_model()
    tokens = small.tokenize("Once upon a time")
    found = small.beam_generate(tokens, BeamSearchConfig(max_new_tokens=256), lambda _: False)
    assert {len(h.tokens) for h in found} == {16}
    for wrong in ([], [1] * 17):
        with pytest.raises(ConfigError, match="prompt"):
            small.beam_generate(wrong)


# ---- with a grammar ---------------------------------------------------------------------------------------------


LIGHT = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "level": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["on", "level"],
    "additionalProperties": False,
}


def texts_of(engine: InferenceEngine, found: list[Hypothesis]) -> list[str]:
    ids = [[token for token in h.tokens[h.n_prompt :] if not engine.is_eos(token)] for h in found]
    return [b"".join(map(engine._model.tokenizer.token_bytes, each)).decode() for each in ids]


def test_beams_stay_in_the_language_of_a_grammar(engine: InferenceEngine) -> None:
    tokens, config = engine.tokenize(PROMPT), BeamSearchConfig(beam_width=4, max_new_tokens=32)
    grammar = Grammar("regex", " (was|is) (big|red|happy)( and (big|sad)){0,2}[.!]")
    found = engine.beam_generate(tokens, config, grammar=grammar)
    state = engine._model.grammars.state(grammar)
    expected = beam_search(Recomputing(engine), tokens, config, engine.is_eos, state)
    assert [h.tokens for h in found] == [h.tokens for h in expected]
    assert len(found) == 4 and all(h.finished for h in found)
    assert all(re.fullmatch(grammar.source, text) for text in texts_of(engine, found))
    assert not engine._model.engine.busy


def test_a_beam_for_every_text_finds_them_all(engine: InferenceEngine) -> None:
    tokens, words = engine.tokenize("The dog was"), [" big", " red", " sad"]
    config = BeamSearchConfig(beam_width=12, max_new_tokens=8, early_stopping=False, length_penalty=0.0)
    found = engine.beam_generate(tokens, config, grammar=Grammar("choice", words))
    assert set(texts_of(engine, found)) == set(words)  # a text may come more than once, by other tokens
    sums = [h.logprob_sum for h in found]
    assert sums == sorted(sums, reverse=True) and len({h.tokens for h in found}) == len(found)


def test_beams_that_must_call_a_tool_are_calls_of_it(engine: InferenceEngine) -> None:
    (tool,) = tools_of([{"name": "light", "parameters": LIGHT, "strict": True}])
    form = BY_NAME["hermes"]
    grammar = call_grammar(CallGrammar(form, [tool], parallel=False))
    config = BeamSearchConfig(beam_width=3, max_new_tokens=120)
    found = engine.beam_generate(engine.tokenize("Turn it on."), config, grammar=grammar)
    calls = [tool_calls_of(parsed(ReplyFormat(form, {"light": tool}), text)) for text in texts_of(engine, found)]
    assert all(h.finished for h in found)
    assert [[call.name for call in each] for each in calls] == [["light"]] * 3
    arguments = [json.loads(call.arguments) for (call,) in calls]
    assert all(each.keys() == {"on", "level"} and each["level"] in range(10) for each in arguments)
