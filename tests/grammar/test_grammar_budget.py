"""What following a grammar may cost: a request that takes more is ended, with a sentence, and it alone."""

from time import thread_time
from typing import Any

import pytest

from assets import stories
from engines import engine, run
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.errors import GrammarError
from tahr.generation.writers import TextWriter
from tahr.grammar import Grammar
from tahr.grammar.compiler import GrammarCompiler
from tahr.grammar.workers import LIMITS
from test_grammar import DIGITS, hot, letter, submit, tokenizer

AMBIGUOUS = Grammar("lark", 'start: a "80"\na: a a | "x" | "y" | " " | "e"')


def test_following_an_ambiguous_grammar_ends_where_it_becomes_costly() -> None:
    compiler = GrammarCompiler(tokenizer())
    state, tokens, n_taken = compiler.state(AMBIGUOUS), [letter(each) for each in "xy"], 0
    began = thread_time()
    with pytest.raises(GrammarError, match=r"takes too much time.*: simplify it"):
        for n_taken in range(2000):
            state.allowed(tokenizer().n_vocab)
            state.advance(tokens[n_taken % 2])
    assert n_taken > 50, "what is short may be ambiguous"
    assert thread_time() - began < 5
    with pytest.raises(GrammarError, match=r"takes too much time.*: simplify it"):
        compiler.state(AMBIGUOUS)  # it is refused from then on
    compiler.close()


def always_late(compiler: GrammarCompiler, n_between: int) -> Any:
    """A matcher each of whose steps took too long."""
    from llguidance import LLMatcher

    from tahr import _native as native

    text = LLMatcher.grammar_from_regex(DIGITS.source)
    return native.GrammarMatcher(compiler.vocabulary.index, text, LIMITS, budget(0.0, 0.0, n_between))


def budget(step_s: float, beyond_s: float, n_between: int = 1) -> dict[str, float]:
    return {"step_s": step_s, "token_s": 0.0, "beyond_s": beyond_s, "n_between": n_between}


def test_a_machine_that_stood_still_once_ends_no_request() -> None:
    """The second step of a grammar that takes too long ends its request, whichever that is."""
    compiler = GrammarCompiler(tokenizer())
    matcher = always_late(compiler, n_between=4096)
    assert matcher.mask() == compiler.state(DIGITS).matcher.mask()
    assert not matcher.error() and not matcher.is_over_budget and matcher.n_long_steps == 1
    other = matcher.copy()  # another request's, but the same grammar
    assert not other.consume(letter("1")) and "too much time" in other.error()
    assert not matcher.is_over_budget, "it ends alone"
    assert not any(matcher.mask()) and matcher.is_over_budget
    compiler.close()


@pytest.mark.parametrize(("n_between", "n_taken"), [(1, 3), (2, 1)])
def test_an_over_long_step_is_forgotten_after_many_tokens(n_between: int, n_taken: int) -> None:
    compiler = GrammarCompiler(tokenizer())
    matcher = always_late(compiler, n_between)
    assert [matcher.consume(letter("1")) for _ in range(3)] == [i < n_taken for i in range(3)]
    compiler.close()


def test_a_first_mask_that_takes_too_long_twice_is_refused_where_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tahr.grammar.compiler.BUDGET", budget(0.0, 9.0, 4096))
    compiler = GrammarCompiler(tokenizer())
    with pytest.raises(GrammarError, match="too much time"):
        compiler.compile(DIGITS)
    compiler.close()


def test_choices_of_a_request_share_what_it_may_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tahr.grammar.compiler.BUDGET", budget(1.0, 0.003))
    compiler = GrammarCompiler(tokenizer())
    state = compiler.state(Grammar("regex", "[a-z]+"))
    state.allowed(tokenizer().n_vocab)
    with pytest.raises(GrammarError, match="too much time"):
        for _ in range(50_000):
            state.fork().allowed(tokenizer().n_vocab)
    compiler.close()


@pytest.mark.parametrize("late", [False, True])
def test_a_request_that_costs_too_much_ends_alone(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(calm := engine(stories()), submit(calm, hot(DIGITS)))[0]
    monkeypatch.setattr("tahr.grammar.compiler.BUDGET", budget(1.0, 0.02))
    strict, eng, params = GrammarCompiler(tokenizer()), engine(stories(), late), hot(AMBIGUOUS, max_tokens=200)
    writer = TextWriter(tokenizer(), (), True)
    bad = eng.submit(ResolvedRequest(tokenizer().encode("Once"), params, lambda: writer), strict.state(AMBIGUOUS))
    good = submit(eng, hot(DIGITS))
    while not (bad.done and good.done):
        eng.step()
    assert bad.result.finish_reason == "error" and "too much time" in str(bad.result.error)
    assert good.tokens[good.n_prompt :] == expected
    strict.close()
