"""What following a grammar may cost: a request that takes more is ended, with a sentence, and it alone."""

from time import thread_time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from assets import stories
from engines import engine, run
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.errors import GrammarError
from tahr.generation.writers import TextWriter
from tahr.grammar import Grammar
from tahr.grammar.compiler import GrammarCompiler, first_mask_error
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


class Stalled:
    """A matcher whose first copies find that they took too long, as on a machine that stood still."""

    def __init__(self, inner: Any, n_stalls: int):
        self.inner = inner
        self.n_stalls = n_stalls

    def copy(self) -> Any:
        self.n_stalls -= 1
        return (
            SimpleNamespace(mask=list, error=lambda: "takes too much time", is_over_budget=True)
            if (self.n_stalls >= 0)
            else self.inner.copy()
        )


@pytest.mark.parametrize(("n_stalls", "is_refused"), [(0, False), (1, False), (2, True)])
def test_a_machine_that_stood_still_once_refuses_no_grammar(n_stalls: int, is_refused: bool) -> None:
    compiler = GrammarCompiler(tokenizer())
    matcher = compiler.state(DIGITS).matcher
    assert bool(first_mask_error(cast(Any, Stalled(matcher, n_stalls)))) is is_refused
    compiler.close()


def test_choices_of_a_request_share_what_it_may_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tahr.grammar.compiler.BUDGET", {"step_s": 1.0, "token_s": 0.0, "beyond_s": 0.003})
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
    monkeypatch.setattr("tahr.grammar.compiler.BUDGET", {"step_s": 1.0, "token_s": 0.0, "beyond_s": 0.02})
    strict, eng, params = GrammarCompiler(tokenizer()), engine(stories(), late), hot(AMBIGUOUS, max_tokens=200)
    writer = TextWriter(tokenizer(), (), True)
    bad = eng.submit(ResolvedRequest(tokenizer().encode("Once"), params, lambda: writer), strict.state(AMBIGUOUS))
    good = submit(eng, hot(DIGITS))
    while not (bad.done and good.done):
        eng.step()
    assert bad.result.finish_reason == "error" and "too much time" in str(bad.result.error)
    assert good.tokens[good.n_prompt :] == expected
    strict.close()
