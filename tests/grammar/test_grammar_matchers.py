"""Matchers of a grammar: made when a sequence needs one, from what earlier ones have learned."""

import asyncio
from pathlib import Path

import pytest

import tahr.grammar.compiler as compiler_module
from tahr import AsyncLLM, EngineConfig, SamplingParams
from tahr.errors import GenerateError
from tahr.grammar import Grammar
from tahr.grammar.compiler import GrammarCompiler
from test_grammar import allowed, letter, tokenizer


def test_requests_that_wait_have_no_matcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has learned much takes megabytes, and a request may ask for a thousand choices."""
    compiled, made = GrammarCompiler(tokenizer()).compile(Grammar("regex", "[a-c]{3,5}")), []
    new_matcher = compiled.new_matcher
    monkeypatch.setattr(compiled, "new_matcher", lambda: made.append(1) or new_matcher())  # type: ignore[func-returns-value]
    first = compiled.state()
    waiting = [first.fork() for _ in range(1000)]
    assert not made
    for each in "abc":
        first.advance(letter(each))
    assert len(made) == 1
    assert allowed(waiting[0]) == allowed(waiting[-1]) != allowed(first) == allowed(first.fork())


def test_new_sequences_of_a_grammar_know_what_ended_ones_have_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = GrammarCompiler(tokenizer()).compile(Grammar("regex", "[a-c]{3,5}"))
    fresh, used = compiled.state(), compiled.state()
    first = allowed(fresh)
    for each in "abc":
        used.advance(letter(each))
    n_seen, after = used.matcher.n_seen, allowed(used)
    assert after != first and compiled.state().matcher.n_seen == 0
    del used
    later = compiled.state()
    assert (later.matcher.n_seen, later.matcher.n_consumed) == (n_seen, 0) and allowed(later) == first
    monkeypatch.setattr(compiler_module, "MAX_SEEN", n_seen)  # a lexer does not grow for ever
    later.advance(letter("a"))
    del later
    assert compiled.state().matcher.n_seen == n_seen


def test_grammars_that_wait_when_the_engine_is_closed_are_told_so(stories: Path) -> None:
    async def main() -> None:
        llm = AsyncLLM(str(stories), config=EngineConfig(n_threads=2))
        schemas = [{"enum": [f"v{i}" for i in range(5000 + n)]} for n in range(6)]  # each takes a while to compile
        params = [SamplingParams(grammar=Grammar("json_schema", schema), max_tokens=4) for schema in schemas]
        tasks = [asyncio.create_task(llm.generate("x", each)) for each in params]
        await asyncio.sleep(0.05)
        await llm.close()
        for outcome in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60):
            assert isinstance(outcome, GenerateError) and "closed" in str(outcome), repr(outcome)
        with pytest.raises(GenerateError, match="closed"):
            await llm.generate("x", SamplingParams(grammar=Grammar("regex", "[0-9]+")))

    asyncio.run(main())
