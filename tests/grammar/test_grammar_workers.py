"""Grammar workers: what they refuse stays refused, what a busy machine keeps them from does not, and all of it ends."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, process_time

import pytest

from tahr.errors import GrammarBusy, GrammarError
from tahr.grammar import Grammar
from tahr.grammar.call_grammar import CallGrammar, call_grammar
from tahr.grammar.compiler import GrammarCompiler
from tahr.text.tool_calls.call_formats import BY_NAME
from tahr.text.tool_calls.tools import tools_of
from test_grammar import tokenizer

WIDE_SCHEMA = {"type": "object", "properties": {f"p{i}": {} for i in range(9000)}}
WIDE = Grammar("json_schema", WIDE_SCHEMA)
CHAIN = "\n".join([*(f'r{i} ::= "a" r{i + 1} "b"' for i in range(20_000)), 'r20000 ::= "c"', "root ::= r0"])


def test_a_grammar_that_computes_too_long_is_refused_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tahr.grammar.compiler.SLOW_CPU_S", 0.4)
    mine = GrammarCompiler(tokenizer())
    for most_s in (60, 0.1):  # the second time nothing is computed
        began = perf_counter()
        with pytest.raises(GrammarError, match="to compile: simplify it"):
            mine.compile(WIDE)
        assert perf_counter() - began < most_s
    mine.compile(Grammar("regex", "[0-9]{7}"))
    mine.close()


def test_a_busy_machine_refuses_no_grammar_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, slow = GrammarCompiler(tokenizer()), Grammar("regex", "[0-9]{2}")
    monkeypatch.setattr("tahr.grammar.workers.PATIENCE_S", 0.001)
    with pytest.raises(GrammarBusy, match="try again"):
        mine.compile(slow)
    monkeypatch.undo()
    mine.compile(slow)
    mine.close()


def test_a_worker_that_the_system_killed_is_started_again() -> None:
    mine, first, second = GrammarCompiler(tokenizer()), Grammar("regex", "[0-9]{3}"), Grammar("regex", "[0-9]{4}")
    mine.compile(first)
    for each in workers_of(mine):
        os.kill(each, signal.SIGALRM)  # as it ends itself where nobody uses it
    mine.compile(second)
    mine.close()


def workers_of(compiler: GrammarCompiler) -> list[int]:
    return [each._process.pid for lane in compiler._lanes for each in lane._idle if each._process]


def test_what_is_computed_for_nobody_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that are ended while they compute or wait give their workers back at once."""
    monkeypatch.setattr("tahr.grammar.compiler.QUICK_CPU_S", 60.0)
    mine = GrammarCompiler(tokenizer())
    wide = [WIDE, Grammar("gbnf", CHAIN), Grammar("json_schema", {**WIDE_SCHEMA, "title": "x"})]
    jobs = [mine.new_job() for _ in wide]
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(mine.compile, grammar, job) for grammar, job in zip(wide, jobs, strict=True)]
        time.sleep(0.3)
        began = perf_counter()
        for job in jobs:
            job.end()
        for each in waiting:
            with pytest.raises(GrammarBusy):
                each.result()
        mine.compile(Grammar("regex", "[0-9]{7}"))
    assert perf_counter() - began < 5
    mine.close()


def test_calls_of_too_many_tools_are_refused_early() -> None:
    """Their grammar is written in a worker, and not compiled where it is too large."""
    schema = {"type": "object", "properties": {f"argument_{i}": {"type": "string"} for i in range(60)}}
    tools = tools_of([{"name": f"tool_{i}", "parameters": schema} for i in range(200)])
    mine = GrammarCompiler(tokenizer())
    assert mine.vocabulary.index
    began = process_time()
    with pytest.raises(GrammarError, match="offer fewer tools"):
        mine.compile(call_grammar(CallGrammar(BY_NAME["qwen3_coder"], tools)))
    assert process_time() - began < 0.5
    mine.close()
