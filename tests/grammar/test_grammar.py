"""Grammars: every text a request writes under one is in its language, whatever runs beside it."""

import json
import re
from functools import cache

import numpy as np
import pytest

from assets import stories
from engines import engine, loaded, run
from late_backend import LateBackend
from tahr.config import SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence
from tahr.errors import ConfigError, GrammarError
from tahr.executor.protocol import StepRequest
from tahr.generation.writers import TextWriter
from tahr.grammar import Grammar
from tahr.grammar.compiler import GrammarCompiler
from tahr.grammar.masks import MaskFiller
from tahr.grammar.state import GrammarState
from tahr.text.tokens.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["dogs", "cats"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
DIGITS = Grammar("regex", "[0-9]{3,6}")


def tokenizer() -> Tokenizer:
    return loaded(stories())[1]


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer())


def hot(grammar: Grammar | None = None, seed: int = 1, **options: object) -> SamplingParams:
    requested = {"temperature": 1.0, "seed": seed, "max_tokens": 60, "grammar": grammar, **options}
    return SamplingParams(**requested)  # type: ignore[arg-type]


def submit(eng: Engine, params: SamplingParams, prompt: str = "Once upon a time") -> Sequence:
    state = compiler().state(params.grammar, params.grammar_after) if params.grammar else None
    return eng.submit(
        ResolvedRequest(tokenizer().encode(prompt), params, lambda: TextWriter(tokenizer(), params.stop, True)), state
    )


def text_of(seq: Sequence) -> str:
    ids = [token for token in seq.tokens[seq.n_prompt :] if token not in tokenizer().eos_ids]
    return b"".join(map(tokenizer().token_bytes, ids)).decode()


def written(grammar: Grammar, **options: object) -> tuple[str, str]:
    """A text by that grammar, and why it ended."""
    eng = engine(stories())
    seq = submit(eng, hot(grammar, **options))
    run(eng, seq)
    return text_of(seq), str(seq.result.finish_reason)


# ---- every kind -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_regular_expression_is_matched_whole(seed: int) -> None:
    text, reason = written(DIGITS, seed=seed)
    assert re.fullmatch("[0-9]{3,6}", text) and reason == "stop"


@pytest.mark.parametrize("seed", range(4))
def test_json_follows_its_schema(seed: int) -> None:
    text, reason = written(Grammar("json_schema", PERSON), seed=seed, max_tokens=200)
    found = json.loads(text)
    assert reason == "stop" and list(found) == ["name", "age", "likes"]
    assert len(found["name"]) <= 8 and 0 <= found["age"] <= 150 and set(found["likes"]) <= {"dogs", "cats"}


def test_one_of_the_choices_is_written() -> None:
    choices = ["yes", "no", "may be (not)", "a.b"]
    assert {written(Grammar("choice", choices), seed=seed)[0] for seed in range(6)} <= set(choices)
    assert written(Grammar("choice", ["<=>"]))[0] == "<=>"


def test_lark_and_gbnf_grammars_are_followed() -> None:
    assert re.fullmatch("(?:ab)+c", written(Grammar("lark", 'start: ("a" "b"){1,9} "c"'))[0])
    text = written(Grammar("gbnf", 'root ::= "(" root ")" | [x-z]{2}'), max_tokens=200)[0]
    assert re.fullmatch(r"\(*[xyz]{2}\)*", text) and text.count("(") == text.count(")")


@pytest.mark.parametrize("kind, source", [("regex", "a\ud800"), ("choice", '["\\ud800"]'), ("lark", 'start: "\ud800"')])
def test_half_a_character_is_refused_in_a_sentence(kind: str, source: str) -> None:
    with pytest.raises(GrammarError, match="half of a character: correct it"):
        compiler().state(Grammar(kind, source))


def test_a_json_object_is_an_object() -> None:
    text, reason = written(Grammar("json_object"), max_tokens=200, temperature=0.0)
    assert reason == "length" or isinstance(json.loads(text), dict)
    assert text.startswith("{")


def test_structural_tags_hold_what_their_schema_says() -> None:
    tag = {"structures": [{"begin": "<n>", "schema": {"type": "integer", "maximum": 99, "minimum": 0}, "end": "</n>"}]}
    state = compiler().state(Grammar("structural_tag", tag))
    for token in tokenizer().encode("free <n>", add_special=False):
        state.advance(token)
    for token in tokenizer().encode("1", add_special=False)[-1:]:
        state.advance(token)
    with pytest.raises(GrammarError, match="cannot go on"):
        state.advance(tokenizer().encode("x", add_special=False)[-1])


# ---- how it ends ------------------------------------------------------------------------------------------------


def test_a_budget_that_ends_inside_a_text_says_length() -> None:
    text, reason = written(Grammar("json_schema", {"type": "string", "minLength": 100}), max_tokens=10)
    assert reason == "length" and text.startswith('"')


def test_a_grammar_of_nothing_ends_at_once() -> None:
    assert written(Grammar("regex", "a{0}")) == ("", "stop")


def test_forced_tokens_take_no_steps() -> None:
    eng = engine(stories())
    seq = submit(eng, hot(Grammar("regex", "x" + "forced" * 8 + "[ab]"), max_tokens=100))
    run(eng, seq)
    assert re.fullmatch("x(forced){8}[ab]", text_of(seq))
    assert eng.scheduler.n_steps < seq.n_generated / 2
    assert eng.stats.tokens_generated == seq.n_generated == seq.result.stats.n_generated_tokens


def test_forced_tokens_are_sampled_where_their_probabilities_are_wanted() -> None:
    eng = engine(stories())
    seq = submit(eng, hot(Grammar("regex", "forced text"), logprobs=1))
    run(eng, seq)
    assert text_of(seq) == "forced text" and len(seq.result.logprobs) == seq.n_generated
    assert all(each.logprob is not None for each in seq.result.logprobs)


def test_forced_tokens_stay_within_the_budget() -> None:
    eng = engine(stories())
    seq = submit(eng, hot(Grammar("regex", "forced" * 10), max_tokens=5))
    run(eng, seq)
    assert seq.n_generated == 5 and seq.result.finish_reason == "length"


def test_a_stop_string_ends_a_text_inside_its_grammar() -> None:
    eng = engine(stories())
    seq = submit(eng, hot(Grammar("regex", "forced text"), stop=("ced",)))
    run(eng, seq)
    assert seq.result.finish_reason == "stop" and seq.n_generated < len(tokenizer().encode("forced text"))


def test_what_bans_leave_nothing_of_a_grammar_is_an_error_of_that_request() -> None:
    eng = engine(stories())
    digits = tuple(i for i in range(tokenizer().n_vocab) if re.search(rb"[0-9]", tokenizer().token_bytes(i)))
    bad, good = submit(eng, hot(DIGITS, banned_tokens=digits)), submit(eng, hot(DIGITS))
    while not (bad.done and good.done):
        eng.step()
    assert (
        bad.result.finish_reason == "error"
        and "grammar" in str(bad.result.error)
        and good.result.finish_reason == "stop"
    )


# ---- batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
def test_free_requests_are_the_same_beside_constrained_ones(late: bool) -> None:
    free = [hot(seed=seed, max_tokens=30) for seed in range(3)]
    alone_engine = engine(stories(), late)
    alone = run(alone_engine, *(submit(alone_engine, params) for params in free))
    eng = engine(stories(), late)
    constrained = [submit(eng, hot(g, seed=9, max_tokens=100)) for g in (DIGITS, Grammar("json_schema", PERSON))]
    beside = [submit(eng, params) for params in free]
    run(eng, *constrained, *beside)
    assert [seq.tokens[seq.n_prompt :] for seq in beside] == alone
    assert re.fullmatch("[0-9]{3,6}", text_of(constrained[0]))
    json.loads(text_of(constrained[1]))


def test_a_text_is_the_same_alone_in_a_batch_and_one_step_late() -> None:
    params = [hot(Grammar("json_schema", PERSON), seed=seed, max_tokens=120) for seed in range(3)]
    found = []
    for late in (False, True):
        eng = engine(stories(), late)
        found.append(run(eng, *(submit(eng, each) for each in params)))
    alone = []
    for each in params:
        eng = engine(stories())
        alone += run(eng, submit(eng, each))
    assert found == [alone, alone]


def test_steps_overlap_with_grammars_too() -> None:
    """The forward pass of the next step does not wait for the host to advance the grammars, only its sampling does."""
    eng = engine(stories(), late=True)
    letters = Grammar("regex", "([a-z]{3} )*[0-9]forced text[0-9]")
    mixed = [hot(letters, seed=1), hot(seed=2), hot(letters, seed=3, repetition_penalty=1.3), hot(letters, n=2)]
    plain = engine(stories())
    expected = [submit(plain, params) for params in mixed]
    run(plain, *expected, *expected[3].queueing.forks)
    found = [submit(eng, params) for params in mixed]
    run(eng, *found, *found[3].queueing.forks)
    assert [seq.tokens for seq in (*found, *found[3].queueing.forks)] == [
        seq.tokens for seq in (*expected, *expected[3].queueing.forks)
    ]
    alone = engine(stories(), late=True)
    run(alone, submit(alone, hot(Grammar("regex", "[a-z]{40,60}"), max_tokens=60)))
    if isinstance(alone.executor.backend, LateBackend):  # a GPU does not count
        assert alone.executor.backend.n_late > alone.scheduler.n_steps / 2


def test_a_step_that_cannot_be_sampled_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    eng = engine(stories(), late=True)
    seq = submit(eng, hot(Grammar("regex", "[a-z]{40}")))
    while seq.n_generated < 5:
        eng.step()
    with monkeypatch.context() as broken:
        broken.setattr(eng.steps.sampler, "batch", lambda *_: 1 / 0)
        while not seq.done:
            eng.step()
    assert seq.result.finish_reason == "error"
    after = submit(eng, hot(DIGITS))
    run(eng, after)
    assert re.fullmatch("[0-9]{3,6}", text_of(after))


def test_the_next_step_is_prepared_while_masks_are_filled() -> None:
    eng = engine(stories(), late=True)
    fill, under_way = eng.steps.fill, []

    def watched(*args: object) -> StepRequest:
        under_way.append(bool(eng._in_flight) and eng._in_flight[-1].masks is not None)
        return fill(*args)  # type: ignore[arg-type]

    eng.steps.fill = watched  # type: ignore[method-assign]
    params = hot(Grammar("regex", "[a-z]{40,60}"), max_tokens=60)
    found = run(eng, submit(eng, params))
    plain = engine(stories())
    assert found == run(plain, submit(plain, params))
    assert sum(under_way) > len(under_way) / 2


@pytest.mark.parametrize("n", [3, 7])
def test_grammars_take_their_tokens_before_masks_are_begun(n: int) -> None:
    texts = Grammar("regex", "([a-z]{3} )*[0-9]forced text[0-9]")
    params = [hot(texts if seed % 4 else None, seed=seed, max_tokens=40) for seed in range(n)]
    plain = engine(stories())
    expected = run(plain, *(submit(plain, each) for each in params))
    eng = engine(stories(), late=True)
    assert run(eng, *(submit(eng, each) for each in params)) == expected


def test_masks_that_cannot_be_begun_fail_their_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    eng = engine(stories(), late=True)
    sequences = [submit(eng, hot(Grammar("regex", "[a-z]{40}"), seed=seed)) for seed in range(3)]
    while any(seq.n_generated < 5 for seq in sequences):
        eng.step()
    with monkeypatch.context() as broken:
        broken.setattr(eng.steps.sampler.filler, "begin", lambda *_: 1 / 0)
        while not all(seq.done for seq in sequences):
            eng.step()
    assert {seq.result.finish_reason for seq in sequences} == {"error"}
    after = submit(eng, hot(DIGITS))
    run(eng, after)
    assert re.fullmatch("[0-9]{3,6}", text_of(after)) and eng.scheduler.pools[0].n_used == 0


def test_a_launch_that_fails_while_masks_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    eng = engine(stories(), late=True)
    seq = submit(eng, hot(Grammar("regex", "[a-z]{40}")))
    while seq.n_generated < 5:
        eng.step()
    with monkeypatch.context() as broken:
        broken.setattr(eng.steps, "fill", lambda *_: 1 / 0)
        while not seq.done:
            eng.step()
    assert seq.result.finish_reason == "error" and seq.n_generated >= 5
    after = submit(eng, hot(DIGITS))
    run(eng, after)
    assert re.fullmatch("[0-9]{3,6}", text_of(after)) and eng.scheduler.pools[0].n_used == 0


def test_choices_of_one_request_follow_the_grammar_each_on_its_own() -> None:
    eng = engine(stories())
    seq = submit(eng, hot(DIGITS, n=4))
    run(eng, seq, *seq.queueing.forks)
    texts = [text_of(each) for each in (seq, *seq.queueing.forks)]
    assert all(re.fullmatch("[0-9]{3,6}", text) for text in texts) and len(set(texts)) > 1


@pytest.mark.parametrize("late", [False, True])
def test_preempted_texts_go_on_where_they_were(late: bool) -> None:
    from engines import page_bytes

    schema = Grammar(
        "json_schema", {"type": "array", "items": {"enum": ["dog", "cat"]}, "minItems": 12, "maxItems": 12}
    )
    params = [hot(schema, seed=seed, max_tokens=150) for seed in range(3)]
    calm = engine(stories(), context_size=192)
    expected = run(calm, *(submit(calm, each) for each in params))
    eng = engine(stories(), late, context_size=192, kv_bytes=26 * page_bytes(stories()), prefix_cache=False)
    assert run(eng, *(submit(eng, each) for each in params)) == expected
    assert eng.scheduler.n_preempted > 0


def test_sampling_parameters_count_inside_the_mask() -> None:
    best = {written(Grammar("regex", "[a-z]{8}"), temperature=0.0, seed=seed)[0] for seed in range(3)}
    drawn = {written(Grammar("regex", "[a-z]{8}"), temperature=3.0, seed=seed)[0] for seed in range(3)}
    assert len(best) == 1 and len(drawn) > 1
    biased = dict.fromkeys(tokenizer().encode("q", add_special=False)[-1:], 100.0)
    assert written(Grammar("regex", "[a-z]{4}"), logit_bias=biased)[0] == "qqqq"


# ---- states -----------------------------------------------------------------------------------------------------


def bits_of(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def letter(text: str) -> int:
    """The token of a letter alone."""
    return next(token for token in range(tokenizer().n_vocab) if tokenizer().token_bytes(token) == text.encode())


def allowed(state: GrammarState) -> set[int]:
    return bits_of(np.frombuffer(state.matcher.mask(), np.uint8))


def test_what_the_mask_allows_can_be_taken_and_nothing_else() -> None:
    """Also: rolling back restores the mask, and a fork goes its own way."""
    rng = np.random.default_rng(3)
    for grammar in (Grammar("json_schema", PERSON), Grammar("regex", "(é|日本|x)+[a-f]{2,9}"), Grammar("json_object")):
        state = compiler().state(grammar)
        for _ in range(15):
            mask = allowed(state)
            assert mask <= set(range(tokenizer().n_vocab))
            for token in {*rng.choice(sorted(mask), 3).tolist(), *rng.integers(0, tokenizer().n_vocab, 3).tolist()}:
                fork = state.fork()
                if token in mask:
                    fork.advance(token)
                    fork.rollback(1)
                    assert allowed(fork) == mask
                else:
                    with pytest.raises(GrammarError):
                        fork.advance(token)
            assert allowed(state) == mask
            state.advance(int(rng.choice(sorted(mask - set(tokenizer().eos_ids)) or sorted(mask))))
            if state.finished:
                break


def test_a_grammar_begins_after_its_trigger() -> None:
    trigger = tuple(tokenizer().encode("day", add_special=False)[-2:])
    eng = engine(stories())
    pushed = dict.fromkeys(trigger, 30.0)
    seq = submit(eng, hot(DIGITS, grammar_after=trigger, logit_bias=pushed, max_tokens=100))
    run(eng, seq)
    ids = seq.tokens[seq.n_prompt :]
    begins = next(i for i in range(len(ids)) if tuple(ids[i : i + len(trigger)]) == trigger) + len(trigger)
    rest = b"".join(map(tokenizer().token_bytes, [i for i in ids[begins:] if i not in tokenizer().eos_ids])).decode()
    assert re.fullmatch("[0-9]{3,6}", rest) and seq.result.finish_reason == "stop"
    assert not set(ids[:begins]) & tokenizer().eos_ids


def test_a_state_rolls_back_across_its_trigger() -> None:
    state = compiler().state(DIGITS, (5, 6))
    for token in (4, 5, 6):
        assert not state.active
        state.advance(token)
    digit = next(token for token in sorted(allowed(state)))
    state.advance(digit)
    state.rollback(2)
    assert not state.active
    state.advance(6)
    assert state.active and digit in allowed(state)


# ---- the door ---------------------------------------------------------------------------------------------------

REFUSED = {
    "unclosed group": Grammar("regex", "(a"),
    "no text is in its language": Grammar("regex", r"[^\s\S]"),
    "look-around": Grammar("regex", "(?=a)b"),
    "unknown name": Grammar("lark", "start: nothing"),
    "no rule root": Grammar("gbnf", 'a ::= "b"'),
    "not defined": Grammar("gbnf", "root ::= b"),
    "unknown special token": Grammar("lark", "start: <|nothing|>"),
    "none of them empty": Grammar("choice", ["a", ""]),
    "is no JSON": Grammar("json_schema", "{"),
    "half of a character": Grammar("regex", "a\udcff"),  # a byte of the command line that is no UTF-8
    "starts with none of the triggers": Grammar(
        "structural_tag", {"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["<b>"]}
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_compiled_is_named(message: str) -> None:
    for _ in range(2):  # the second time from the cache
        with pytest.raises(GrammarError, match=re.escape(message)):
            compiler().compile(REFUSED[message])


def test_without_llguidance_an_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(GrammarError, match="pip install llguidance"):
        GrammarCompiler(tokenizer()).compile(DIGITS)


def test_grammars_are_plain_data() -> None:
    assert Grammar("json_schema", {"a": 1}) == Grammar("json_schema", '{"a": 1}')
    assert hash(Grammar("choice", ["a"])) == hash(Grammar("choice", ("a",)))
    for kind, source in (("regexp", "a"), ("regex", ""), ("regex", 5), ("lark", None), ("json_schema", {1, 2})):
        with pytest.raises(GrammarError):
            Grammar(kind, source)
    with pytest.raises(GrammarError, match="at most"):
        Grammar("regex", "a" * (1 << 20) + "b")
    with pytest.raises(ConfigError, match="Grammar"):
        SamplingParams(grammar="[0-9]")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="without a grammar"):
        SamplingParams(grammar_after=(5,))


def test_a_grammar_is_compiled_once_while_it_is_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = GrammarCompiler(tokenizer())
    first = mine.compile(DIGITS)
    assert mine.compile(Grammar("regex", "[0-9]{3,6}")) is first
    monkeypatch.setattr("tahr.grammar.compiler.MAX_CACHED", 1)
    mine.compile(Grammar("regex", "a"))
    assert mine.compile(DIGITS) is not first
    assert mine.vocabulary.index is mine.vocabulary.index
    mine.close()


def test_grammars_take_tokens_and_fill_masks_side_by_side_as_they_do_alone() -> None:
    """Among them one that forces tokens, one that forbids its token and one that has not begun."""
    digits, letters = Grammar("regex", "[0-9]{3,6}"), Grammar("regex", "[ab](?:forced){3}[ab]")
    made = [
        compiler().state(grammar, after)
        for grammar, after in [(digits, ()), (letters, ()), (digits, ()), (digits, (5,))]
    ]
    one, a, x = map(letter, "1ax")
    tokens = [(made[0], one, True), (made[1], a, True), (made[2], x, True), (made[3], 5, True)]
    masks = np.zeros((4, made[0].vocabulary.n_words), np.uint32)
    alone = [state.fork() for state in made]
    job = MaskFiller().begin(list(enumerate(made)), masks, tokens)
    alone[0].advance(one)
    alone[1].advance(a)
    alone[3].advance(5)
    assert list(job.forced[0]) == [] == list(job.forced[3])
    assert job.forced[1] == alone[1].forced_tokens() != []
    assert isinstance(job.forced[2], GrammarError)
    made[1].advance(job.forced[1][0])  # its mask is not wanted, so the matcher is free
    assert job.wait() == {}
    assert bits_of(masks[0]) == allowed(alone[0]) == allowed(made[0])
    assert bits_of(masks[3]) == allowed(alone[3])
