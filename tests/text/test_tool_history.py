"""Conversations with tools: every released template shows tools, calls and results, whatever it knows of them."""

import json
from typing import Any

import pytest

from tahr.text.replies.deltas import tool_calls_of
from tahr.text.replies.thinking import is_open
from tahr.text.templates.chat import ChatTemplate
from tahr.text.templates.prompt import render_chat
from tahr.text.tool_calls.call_formats import BY_NAME, CALL_FORMATS
from tahr.text.tool_calls.parser import ReplyFormat, parsed
from tahr.text.tool_calls.written_calls import FRAMES, written
from test_chat import EXPECTED, template_named
from tool_replies import BY_NAME as TOOLS
from tool_replies import ODD, ROME, WEATHER, WX

# Templates that want variables of their own, or a description of everything in a schema; in transformers too.
UNUSABLE = {"fireworks-ai-llama-3-firefunction-v2", "CohereForAI-c4ai-command-r-plus-tool_use"}
FIRST_DEEPSEEK = ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "llama-cpp-deepseek-r1")
# What the templates of these models show as calls, each in its own way.
FORMATS = {
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "Qwen3-Coder": "qwen3_coder",
    "ByteDance-Seed-OSS": "seed_oss",
    "GigaChat3-10B-A1.8B": "gigachat3",
    "LFM2.5-Instruct": "lfm2",
    "openbmb-MiniCPM5-1B": "minicpm",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral_args",
    "google-gemma-4-31B-it": "gemma",
    "google-gemma-2-2b-it": "json",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v31",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v32",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek_v3",
    "GLM-4.6": "glm",
    "Kimi-K2-Instruct": "kimi",
    "moonshotai-Kimi-K2": "kimi",
    "MiniMax-M1": "minimax_m1",
    "MiniMax-M2": "minimax_m2",
    "openai-gpt-oss-120b": "harmony",
    "LFM2-8B-A1B": "lfm2",
    "NVIDIA-Nemotron-Nano-v2": "nemotron",
    "Cohere2MoE": "cohere",
    "Apertus-8B-Instruct": "apertus",
    "tencent-Hy3": "hunyuan",
}


def call(name: str, arguments: str, index: int) -> dict[str, Any]:
    return {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: str, index: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{index}", "content": content}


# As OpenAI's clients send it: arguments are text, content is empty, ids are of our own kind.
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Where is it warmer?"},
    {"role": "assistant", "content": None, "tool_calls": [call(WX, ROME, 0), call(WX, '{"city": "Oslo"}', 1)]},
    result("31 degrees", 0),
    result("minus 4", 1),
]


@pytest.mark.parametrize("name", sorted(EXPECTED["digests"].keys() - UNUSABLE))
def test_nothing_of_a_conversation_with_tools_is_lost(name: str) -> None:
    text = render_chat(template_named(name), HISTORY, [WEATHER])
    for what in ("The weather of a city.", "Rome", "Oslo", "31 degrees", "minus 4", "Where is it warmer?"):
        assert what in text, what
    assert text.count(WX) >= 3 and text.index("Rome") < text.index("31 degrees")


@pytest.mark.parametrize("name", FIRST_DEEPSEEK)
def test_a_call_is_shown_also_after_a_word(name: str) -> None:
    """DeepSeek's first templates show the calls of messages without content alone."""
    said = {**HISTORY[1], "content": "Let me look."}
    text = render_chat(template_named(name), [HISTORY[0], said, *HISTORY[2:]], [WEATHER])
    places = [text.rindex(what) for what in ("Let me look.", "Rome", "Oslo", "31 degrees", "minus 4")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("openai-gpt-oss-120b", "<|start|>assistant<|channel|>analysis<|message|>Rome first.<|end|>"),
        ("LFM2.5-8B-A1B", "<think>Rome first.</think>"),
        ("upstage-Solar-Open-100B", "<|begin|>assistant<|think|>Rome first.<|end|>"),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "[THINK]Rome first.[/THINK]"),
        ("Qwen3.5-4B", "<think>\nRome first.\n</think>"),
    ],
)
def test_what_was_thought_before_a_call_is_shown_once(name: str, shown: str) -> None:
    """Templates look for it under several names."""
    thought = {**HISTORY[1], "reasoning_content": "Rome first."}
    text = render_chat(template_named(name), [HISTORY[0], thought, *HISTORY[2:]], [WEATHER])
    assert text.count("Rome first.") == text.count(shown) == 1
    assert text.index(shown) < text.rindex("Oslo")


def test_thinking_and_text_before_a_call_are_not_refused() -> None:
    said = {**HISTORY[1], "content": "Let me look.", "reasoning_content": "Rome first."}
    text = render_chat(template_named("openai-gpt-oss-120b"), [HISTORY[0], said, *HISTORY[2:]], [WEATHER])
    assert "<|channel|>analysis<|message|>Rome first.\n\nLet me look.<|end|>" in text


def test_what_was_thought_before_an_answer_is_shown_where_templates_show_it() -> None:
    answer = {"role": "assistant", "content": "Rome.", "reasoning_content": "Rome first."}
    messages = [HISTORY[0], answer, {"role": "user", "content": "Sure?"}]
    text = render_chat(template_named("mistralai-Ministral-3-14B-Reasoning-2512"), messages)
    assert "[/INST][THINK]Rome first.[/THINK]Rome.</s>[INST]Sure?[/INST]" in text


def test_results_stay_with_their_calls_where_ids_come_again() -> None:
    """Some clients number the calls of each message from 0."""
    later = [result("rain", 0), result("snow", 1)]
    text = render_chat(template_named("meta-llama-Llama-3.1-8B-Instruct"), [*HISTORY, HISTORY[1], *later], [WEATHER])
    places = [text.index(what) for what in ("31 degrees", "minus 4", "rain", "snow")]
    assert places == sorted(places)


def test_the_call_format_is_known_by_the_template() -> None:
    assert {name: template_named(name).call_format.name for name in FORMATS} == FORMATS
    assert ChatTemplate("{{ messages }}").call_format is BY_NAME["json"]
    assert ChatTemplate("<tool_call>", tool_call_parser="qwen3_xml").call_format is BY_NAME["qwen3_coder"]


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"google-gemma-2-2b-it", "openai-gpt-oss-120b"}))
def test_what_a_template_shows_as_a_call_is_read_as_that_call(name: str) -> None:
    """The text between the prompt and the result is what the model is taught to write."""
    template = template_named(name)
    made: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call(WX, ROME, 0)]}
    requested = [HISTORY[0]]
    before = render_chat(template, requested, [WEATHER], add_generation_prompt=False)
    whole = render_chat(template, [*requested, made, result("31 degrees", 0)], [WEATHER], add_generation_prompt=False)
    begin = next(i for i, (a, b) in enumerate(zip(before + "\0", whole, strict=False)) if a != b)
    shown = whole[begin : whole.index("31 degrees")]
    if template.call_format.bare:
        shown = shown[shown.index("{") :]
    calls = tool_calls_of(parsed(ReplyFormat(template.call_format, TOOLS), shown))
    assert [(each.name, json.loads(each.arguments)) for each in calls] == [(WX, json.loads(ROME))]


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_written_calls_are_read_back(name: str) -> None:
    pairs = [(WX, ROME), ("now", "{}"), (WX, ODD)]
    calls = tool_calls_of(parsed(ReplyFormat(BY_NAME[name], TOOLS), written(BY_NAME[name], pairs)))
    assert [(each.name, each.arguments) for each in calls] == pairs


def test_templates_that_say_so_begin_the_thinking() -> None:
    begun = {
        name: is_open(render_chat(template_named(name), HISTORY[:1]), template_named(name).thinking)
        for name in ("Qwen-Qwen3-0.6B", "Qwen3.5-4B", "MiniMax-M2", "GLM-4.6", "deepseek-ai-DeepSeek-V3.1")
    }
    assert begun == {
        "Qwen-Qwen3-0.6B": False,
        "Qwen3.5-4B": True,
        "MiniMax-M2": True,
        "GLM-4.6": False,
        "deepseek-ai-DeepSeek-V3.1": False,
    }
    off = render_chat(template_named("Qwen3.5-4B"), HISTORY[:1], enable_thinking=False)
    assert not is_open(off, template_named("Qwen3.5-4B").thinking)


def test_the_table_has_no_row_that_is_never_reached() -> None:
    named = [each for each in CALL_FORMATS if each.found_by]
    for i, each in enumerate(named):
        assert not any(set(before.found_by) <= set(each.found_by) for before in named[:i]), each.name
