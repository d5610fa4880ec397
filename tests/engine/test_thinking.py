"""Thinking in the engine: its budget closes the block, and what follows is as if the model had closed it."""

from typing import Any

import pytest

import assets
from engines import engine as make_engine
from engines import loaded
from speculating import speculating
from tahr import LLM, SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence
from tahr.errors import ConfigError
from tahr.generation.writers import ReplyWriter, ThinkingBudget
from tahr.text.replies.deltas import Delta, reasoning_of, text_of
from tahr.text.replies.thinking import KNOWN
from tahr.text.templates.chat import ChatTemplate
from tahr.text.tool_calls.parser import ReplyFormat
from tool_replies import NOW, WEATHER

STORIES = assets.stories()
THINK = KNOWN[1]
# The template of a model that thinks and knows tools.
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call></tool_call>{% endif %}"
    "{% for m in messages %}{{ m.content }}\n{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"
    "{% endfor %}{% if not enable_thinking | default(true) %}<think></think>{% endif %}"
)


def run(engine: Engine, params: SamplingParams, budget: ThinkingBudget | None, prompt: list[int]) -> list[Any]:
    """Every choice: its sequence and its deltas."""
    tokenizer, form = loaded(STORIES)[1], ReplyFormat(thinking=THINK, in_thinking=True)
    first = engine.submit(
        ResolvedRequest(prompt, params, lambda: ReplyWriter(tokenizer, params.stop, form, budget=budget))
    )
    choices: dict[int, tuple[Sequence, list[Delta]]] = {each.id: (each, []) for each in (first, *first.queueing.forks)}
    while engine.busy:
        for seq, deltas, _ in engine.step():
            choices[seq.id][1].extend(deltas)
    return list(choices.values())


def greedy(engine: Engine, prompt: list[int], n: int) -> list[int]:
    (made,) = run(engine, SamplingParams(temperature=0, max_tokens=n), None, prompt)
    return made[0].tokens[len(prompt) :]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("options", [{}, {"logprobs": 1}, {"n": 2}])
def test_the_budget_closes_the_block(late: bool, options: dict[str, Any]) -> None:
    tokenizer = loaded(STORIES)[1]
    prompt = tokenizer.encode("Once upon a time")
    close = tuple(tokenizer.encode("\n</think>\n", add_special=False))
    before = greedy(make_engine(STORIES), prompt, 7)
    after = greedy(make_engine(STORIES), [*prompt, *before, *close], 10)
    params = SamplingParams(temperature=0, max_tokens=17 + len(close), thinking_budget=7, **options)
    for seq, deltas in run(make_engine(STORIES, late=late), params, ThinkingBudget(7, close), prompt):
        assert seq.tokens[len(prompt) :] == [*before, *close, *after]
        assert seq.reply.writer.n_reasoning_tokens <= 7 + len(close)
        assert reasoning_of(deltas) == tokenizer.decode(before).strip() and text_of(deltas)
        assert "think" not in text_of(deltas) + reasoning_of(deltas)
        if seq.params.logprobs is not None:
            assert len(seq.result.logprobs) == len(before + after) + len(close)
            assert all(scored.logprob is not None for scored in seq.result.logprobs)


def test_nothing_is_guessed_beside_a_budget() -> None:
    """Drafts that go on as if the block were open must not be taken after the tokens that close it."""
    tokenizer = loaded(STORIES)[1]
    prompt = tokenizer.encode("Once upon a time")
    close = tuple(tokenizer.encode("\n</think>\n", add_special=False))
    told = greedy(make_engine(STORIES), prompt, 30)
    params = SamplingParams(temperature=0, max_tokens=30, thinking_budget=7)
    engine = speculating(STORIES, "script", 4, texts=[[*prompt, *told]])
    ((seq, _),) = run(engine, params, ThinkingBudget(7, close), prompt)
    after = greedy(make_engine(STORIES), [*prompt, *told[:7], *close], 30 - 7 - len(close))
    assert seq.tokens[len(prompt) :] == [*told[:7], *close, *after]


def test_a_budget_that_is_not_reached_changes_nothing() -> None:
    prompt = loaded(STORIES)[1].encode("Once upon a time")
    params = SamplingParams(temperature=0, max_tokens=12, thinking_budget=50)
    (made,) = run(make_engine(STORIES), params, ThinkingBudget(50, (1, 2)), prompt)
    assert made[0].tokens[len(prompt) :] == greedy(make_engine(STORIES), prompt, 12)


# ---- the library --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm() -> LLM:
    made = LLM(str(STORIES), context_size=512)
    made.template = ChatTemplate(TEMPLATE)
    return made


def test_options_of_a_chat_reach_prompt_and_parameters(llm: LLM) -> None:
    assert "get_weather" in llm.render("Hi", tools=[WEATHER])
    assert llm.render("Hi", thinking=False).endswith("<think></think>")
    assert llm.prepare_chat("Hi", reasoning_effort="low").params.thinking_budget == 1024
    assert llm.prepare_chat("Hi", tools=[WEATHER]).reply_format.tools.keys() == {"get_weather"}  # type: ignore[union-attr]
    assert llm.prepare_chat("Hi", tools=[WEATHER], tool_choice="none").reply_format.tools == {}  # type: ignore[union-attr]
    for wrong in ({"tools": [{}]}, {"tool_choice": "required"}, {"thinking": 1}, {"reasoning_effort": "vast"}):
        with pytest.raises(ConfigError):
            llm.prepare_chat("Hi", **wrong)


def test_required_calls_come_parsed(llm: LLM) -> None:
    """Whatever a model of 260,000 parameters thinks of tools."""
    params = SamplingParams(temperature=1, seed=3, max_tokens=200)
    options: dict[str, Any] = {"tools": [NOW], "tool_choice": "required", "parallel_tool_calls": False}
    for thinking in (False, True):
        own = params if not thinking else SamplingParams(temperature=1, seed=3, max_tokens=200, thinking_budget=9)
        done = llm.chat("Hi", own, thinking=thinking, **options)
        assert [call.name for call in done.tool_calls] == ["now"] and done.tool_calls[0].arguments == "{}"
        assert done.finish_reason == "stop" and not done.text
        assert (done.n_reasoning_tokens > 0) is thinking and bool(done.reasoning) is thinking


def test_a_grammar_begins_after_the_thinking(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    params = SamplingParams(temperature=1, seed=1, max_tokens=120, thinking_budget=12)
    done = llm.chat("Hi", params, response_format=schema)
    assert done.parsed in ({"a": 1}, {"a": 2}) and done.reasoning and done.n_reasoning_tokens >= 12
    free = llm.chat("Hi", SamplingParams(temperature=1, seed=1, max_tokens=60), response_format=schema, thinking=False)
    assert free.parsed in ({"a": 1}, {"a": 2}) and not free.reasoning


def test_json_or_calls_where_both_are_asked_for(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    for seed in range(8):
        params = SamplingParams(temperature=2, seed=seed, max_tokens=150)
        done = llm.chat("Hi", params, tools=[NOW], thinking=False, parallel_tool_calls=False, response_format=schema)
        assert done.tool_calls or done.parsed in ({"a": 1}, {"a": 2}), done
