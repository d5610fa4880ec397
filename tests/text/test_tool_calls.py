"""Tool calls: every call_format, cut anywhere, gives the same calls; marks never show; time is linear."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tahr.errors import ConfigError
from tahr.text.replies.deltas import (
    Delta,
    ReasoningDelta,
    ToolCallDelta,
    cut_call_of,
    merge,
    reasoning_of,
    text_of,
    tool_calls_of,
)
from tahr.text.tool_calls import json_text
from tahr.text.tool_calls.call_formats import ALSO, BY_NAME, CALL_FORMATS, call_format_named
from tahr.text.tool_calls.json_text import MAX_LITERAL, json_of_python, loaded_prefix
from tahr.text.tool_calls.parser import ReplyFormat, ReplyParser
from tahr.text.tool_calls.tools import MAX_TOOLS, Tool, tools_of
from tiers import examples
from tool_replies import BY_NAME as TOOLS
from tool_replies import COHERE, REPLIES, ROME, THINK, Reply, hermes

IDS = [f"{reply.call_format}-{i}" for i, reply in enumerate(REPLIES)]


def parse(reply_format: ReplyFormat, pieces: list[str]) -> list[Delta]:
    parser = ReplyParser(reply_format)
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    return [*deltas, *parser.flush()]


def without_ids(deltas: list[Delta]) -> list[object]:
    """What a reader gets, whatever the ids and the pieces."""
    calls = [(call.name, call.arguments) for call in tool_calls_of(deltas)]
    kinds = [type(delta) for delta in merge(deltas)]
    order = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind is not before]
    return [text_of(deltas), reasoning_of(deltas), calls, order]


@pytest.mark.parametrize("reply", REPLIES, ids=IDS)
def test_what_is_in_a_reply(reply: Reply) -> None:
    deltas = parse(reply.format, [reply.raw])
    assert tuple((call.name, call.arguments) for call in tool_calls_of(deltas)) == reply.calls
    assert (text_of(deltas), reasoning_of(deltas)) == (reply.text, reply.reasoning)
    ids = [call.id for call in tool_calls_of(deltas)]
    assert all(ids) and len(set(ids)) == len(ids)


@pytest.mark.parametrize("reply", REPLIES, ids=IDS)
def test_cut_at_every_position_it_is_the_same(reply: Reply) -> None:
    whole = without_ids(parse(reply.format, [reply.raw]))
    for cut in range(len(reply.raw) + 1):
        assert without_ids(parse(reply.format, [reply.raw[:cut], reply.raw[cut:]])) == whole, cut
    assert without_ids(parse(reply.format, list(reply.raw))) == whole


@pytest.mark.parametrize("reply", REPLIES, ids=IDS)
def test_a_reply_that_breaks_off_shows_no_marks(reply: Reply) -> None:
    marks = [mark for mark in reply.format.marks if len(mark) > 1]
    for end in range(len(reply.raw)):
        deltas = parse(reply.format, [reply.raw[:end]])
        assert not any(mark in text_of(deltas) or mark in reasoning_of(deltas) for mark in marks), end
        assert all(call.name for call in tool_calls_of(deltas))
        assert len(tool_calls_of(deltas)) <= len(reply.calls)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(REPLIES), st.sampled_from(REPLIES), st.lists(st.integers(0, 400), max_size=8), st.integers(0, 200)
)
def test_replies_of_any_dialect_are_read_without_error_and_alike(
    reply: Reply, other: Reply, cuts: list[int], end: int
) -> None:
    """Also those of another family, and those that break off in the middle and begin again."""
    raw = other.raw[:end] + reply.raw + other.raw
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    pieces = [raw[a:b] for a, b in pairwise(places)]
    assert without_ids(parse(reply.format, pieces)) == without_ids(parse(reply.format, [raw]))


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(sorted(BY_NAME)), st.data())
def test_noise_made_of_marks_is_read_alike(name: str, data: st.DataObject) -> None:
    call_format = call_format_named(name)
    words = [
        *call_format.marks,
        THINK.open,
        THINK.close,
        '{"name": "now", "arguments": {',
        "}",
        '"',
        "\\",
        "x",
        "\n",
        "now",
        "[",
        ",",
    ]
    raw = "".join(data.draw(st.lists(st.sampled_from(words), max_size=14)))
    thinking = None if name == "harmony" else THINK
    reply_format = ReplyFormat(
        call_format, TOOLS, thinking, in_thinking=data.draw(st.booleans()) and thinking is not None
    )
    whole = without_ids(parse(reply_format, [raw]))
    assert without_ids(parse(reply_format, list(raw))) == whole
    marks = (*call_format.opens, *((THINK.open,) if thinking else ()))
    assert not any(mark in whole[0] for mark in marks)  # type: ignore[operator]


# ---- streams ------------------------------------------------------------------------------------------------


def test_numbers_that_no_float_holds_stay_json() -> None:
    lfm2 = next(reply.format for reply in REPLIES if reply.call_format == "lfm2")
    raw = "<|tool_call_start|>[get_weather(city=1e999, days=-1e999, tags=[1e999, 'a'])]<|tool_call_end|>"
    (call,) = tool_calls_of(parse(lfm2, [raw]))
    assert call.arguments == """{"city": 1e999, "days": -1e999, "tags": "[1e999, 'a']"}"""


def test_literals_of_python_have_a_bound() -> None:
    """Reading four megabytes of them took nine seconds, in which nothing else ran."""
    assert json_of_python("[" + "1," * 1000 + "]") == json.dumps([1] * 1000)
    assert json_of_python("[" + "1," * MAX_LITERAL + "]") == ""
    assert json_of_python("'" + "a" * MAX_LITERAL + "'") == json.dumps("a" * MAX_LITERAL)


@pytest.mark.parametrize(
    "call_format, raw, arguments",
    [
        (
            "lfm2",
            r"""<|tool_call_start|>[f(a="\ud83d\ude00", b='\ud83d')]<|tool_call_end|>""",
            '{"a": "😀", "b": "\ufffd"}',
        ),
        ("hermes", r"""<tool_call>{"name": "f", "arguments": "{\"a\": \"\ud83d\"}"}</tool_call>""", '{"a": "\ufffd"}'),
    ],
)
def test_halves_of_characters_do_not_reach_clients(call_format: str, raw: str, arguments: str) -> None:
    """No server could send them: the request failed."""
    (call,) = tool_calls_of(parse(ReplyFormat(call_format_named(call_format), {"f": Tool("f")}), [raw]))
    assert call.arguments == arguments
    assert loaded_prefix(r'{"a": "\ud83d", "b": "\uD83D\uDE00"}') == {"a": "\ufffd", "b": "😀"}


def test_arguments_may_have_names_that_are_no_words() -> None:
    tools = {"f": Tool("f", parameters={"type": "object", "properties": {"user-id": {}, "page[size]": {}, "$a": {}}})}
    lfm2, gemma = (ReplyFormat(call_format_named(name), tools) for name in ("lfm2", "gemma"))
    raw = "<|tool_call_start|>[f(user-id=5, page[size]=[1], $a == 2)]<|tool_call_end|>"
    (call,) = tool_calls_of(parse(lfm2, [raw]))
    assert call.arguments == '{"user-id": 5, "page[size]": [1], "$a": "$a == 2"}'
    (call,) = tool_calls_of(parse(gemma, ["<|tool_call>call:f{user-id:5,page[size]:[1],b:{c[]:2}}<tool_call|>"]))
    assert call.arguments == '{"user-id":5,"page[size]":[1],"b":{"c[]":2}}'


def test_arguments_that_break_off_after_a_backslash_are_read_in_linear_time() -> None:
    """Sixteen thousand quotes took sixteen seconds."""
    text = '{"n": 1, "code": "' + r"\"x, " * 200_000 + "\\"
    before = time.perf_counter()
    assert loaded_prefix(text) == {"n": 1}
    assert time.perf_counter() - before < 10


def test_names_and_arguments_come_as_they_are_generated() -> None:
    parser = ReplyParser(ReplyFormat(call_format_named("hermes"), TOOLS))
    assert parser.push('Hi <tool_call>\n{"name": "get_weather"') == (
        "Hi",
        ToolCallDelta(0, "", first_id(parser), "get_weather"),
    )
    assert parser.push(', "arguments": {"city": "Ro') == (ToolCallDelta(0, '{"city": "Ro'),)
    assert parser.push('me"}') == (ToolCallDelta(0, 'me"}'),)
    assert parser.push("}\n</tool_call>") == ()


def first_id(parser: ReplyParser) -> object:
    class Any:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, str) and other.startswith("call_")

        __hash__ = None  # type: ignore[assignment]

    return Any()


def test_texts_in_tags_come_as_they_are_generated() -> None:
    parser = ReplyParser(ReplyFormat(call_format_named("qwen3_coder"), TOOLS))
    parser.push("<tool_call>\n<function=get_weather>\n<parameter=city>\nRo")
    assert parser.push('me "x"\n') == (ToolCallDelta(0, 'me \\"x\\"'),)
    assert parser.push("</parameter>") == (ToolCallDelta(0, '"'),)


def test_text_that_is_no_call_is_not_held_back() -> None:
    parser = ReplyParser(ReplyFormat(call_format_named("json"), TOOLS))
    assert parser.push('{"answer"') == ('{"answer"',)
    parser = ReplyParser(ReplyFormat(call_format_named("json"), TOOLS))
    assert text_of([*parser.push('{"name": "' + "x" * 5000)]) == '{"name": "' + "x" * 5000
    parser = ReplyParser(ReplyFormat(call_format_named("hermes"), TOOLS))
    assert parser.push("<tool_call>I think") == ("I think",)
    assert text_of(parser.push(" " * 100)) == " " * 100
    assert parser.push("x < ") == ("x <",) and parser.push("y") == (" y",)


@pytest.mark.parametrize("name", [name for name in BY_NAME if BY_NAME[name].closes])
def test_a_block_that_is_never_closed_does_not_swallow_text(name: str) -> None:
    call_format = call_format_named(name)
    deltas = parse(ReplyFormat(call_format, TOOLS), [call_format.opens[0], *["so it goes on "] * 100])
    assert len(text_of(deltas)) > 800 and not tool_calls_of(deltas)


def test_one_call_at_a_time_ends_the_reply() -> None:
    parser = ReplyParser(ReplyFormat(call_format_named("hermes"), TOOLS, parallel=False))
    deltas = parser.push(hermes("{}", "now") + hermes("{}", "now") + "more") + parser.flush()
    assert parser.stopped and len(tool_calls_of(deltas)) == 1 and not text_of(deltas)


def test_reasoning_is_seen_while_it_lasts() -> None:
    parser = ReplyParser(ReplyFormat(thinking=THINK))
    assert parser.push("<thi") == () and not parser.in_reasoning
    assert parser.push("nk>\nHm") == (ReasoningDelta("Hm"),) and parser.in_reasoning
    assert parser.push("\n</think>\n\n Yes ") == ("Yes",) and not parser.in_reasoning
    assert parser.flush() == (" ",)


@pytest.mark.serial
@pytest.mark.parametrize(
    "mark", ["<tool_call>", '<tool_call>{"name": "now", "arguments": {"a": "', "<think>", " ", "{", '{"name": ']
)
def test_time_is_linear(mark: str) -> None:
    """Ten times the text takes about ten times as long, token by token; a quadratic parser takes a hundred times."""

    def seconds(n: int) -> float:
        parser = ReplyParser(ReplyFormat(call_format_named("hermes"), TOOLS, THINK))
        began = time.perf_counter()
        for _ in range(n):
            parser.push(mark)
        parser.flush()
        return time.perf_counter() - began

    small = min(seconds(300) for _ in range(5))
    assert seconds(6000) < max(20 * small * 4, 0.2)


# ---- the table ----------------------------------------------------------------------------------------------


def test_every_dialect_has_recorded_replies() -> None:
    assert {reply.call_format for reply in REPLIES} == BY_NAME.keys()
    assert {call_format.name for call_format in CALL_FORMATS} == BY_NAME.keys() and set(ALSO.values()) <= BY_NAME.keys()
    with pytest.raises(ConfigError, match="no tool call parser 'latin'"):
        call_format_named("latin")


KNOWN_TO_VLLM = """
deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 ernie45 functiongemma gemma4 gigachat3 glm45 glm47 granite granite4
granite-20b-fc hermes hunyuan_a13b hy_v3 internlm jamba kimi_k2 lfm2 ling3 llama3_json llama4_json llama4_pythonic
longcat mimo minicpm5 minimax minimax_m2 mistral olmo3 openai phi4_mini_json poolside_v1 pythonic qwen3_coder qwen3_xml
seed_oss step3 step3p5 xlam cohere_command3 cohere_command4
"""


def test_names_of_vllm_are_known_and_the_others_refused_by_name() -> None:
    assert all(call_format_named(name) for name in KNOWN_TO_VLLM.split())
    for name in ("deepseek_v41", "inkling", "kimi_k3", "minimax_m3", "functionary_v3_2", "command_r_plus"):
        with pytest.raises(ConfigError, match=f"no tool call parser '{name}': there are apertus, cohere, deepseek_v3"):
            call_format_named(name)


# ---- tools --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("x", "must be a list"),
        ([{"type": "function", "function": {}}], r"tools\[0\].function.name is missing"),
        ([{"type": "function"}], "name is missing"),
        ([{"type": "web_search"}], "only functions"),
        ([{"name": "a"}, {"name": "a"}], "two tools named 'a'"),
        ([{"name": "no spaces"}], "a name has up to 128"),
        ([{"name": "x" * 129}], "a name has up to 128"),
        ([{"name": "a", "parameters": {"type": "string"}}], "must describe an object"),
        ([{"name": "a", "parameters": []}], "must be a JSON schema"),
        ([{"name": "a", "strict": 1}], "strict must be"),
        ([{"name": "a", "description": 1}], "description must be"),
        ([{"name": "a", "inputSchema": {"type": "object"}}], r"tools\[0\].inputSchema is not where"),
        ([{"type": "function", "function": {"name": "a"}, "parameters": {}}], r"\.parameters is not where"),
        ([{"function": {"name": "a", "input_schema": {}}}], r"\.input_schema is not where"),
        ([{"name": f"f{i}"} for i in range(MAX_TOOLS + 1)], "is the most"),
    ],
)
def test_tools_that_are_refused(given: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        tools_of(given)


def test_deep_schemas_are_refused_and_missing_ones_filled_in() -> None:
    deep: dict[str, object] = {}
    for _ in range(500):
        deep = {"properties": {"x": deep}}
    with pytest.raises(ConfigError, match="levels deep"):
        tools_of([{"name": "a", "parameters": deep}])
    assert tools_of([{"name": "a"}])[0].parameters == {"type": "object", "properties": {}}
    both = {"name": "a", "parameters": {"type": "object", "required": []}, "schema": "any"}
    assert tools_of([both])[0].parameters == both["parameters"]
    assert len(tools_of([{"name": f"f{i}"} for i in range(1000)])) == 1000


# ---- what a reply means, and what it does not ----------------------------------------------------------------


@pytest.mark.parametrize("cut", range(60))
def test_calls_quoted_in_a_closed_block_of_thinking_are_thoughts(cut: int) -> None:
    raw = "I could call " + hermes(ROME) + " but no.</think>No."
    reply_format = ReplyFormat(call_format_named("hermes"), TOOLS, THINK, in_thinking=True)
    deltas = parse(reply_format, [raw[: 3 * cut], raw[3 * cut :]])
    assert not tool_calls_of(deltas) and text_of(deltas) == "No."
    assert reasoning_of(deltas) == f'I could call \n{{"name": "get_weather", "arguments": {ROME}}}\n but no.'


@pytest.mark.parametrize("reply", REPLIES, ids=IDS)
def test_a_call_is_whole_or_it_is_none(reply: Reply) -> None:
    """Wherever the budget ends a reply, what is left of a call is not taken for one."""
    if not reply.calls or reply.thinking or "python_tag" in reply.raw:  # of code nobody knows whether it is whole
        return
    names = [name for name, _ in reply.calls]
    for end in range(len(reply.raw)):
        deltas = parse(reply.format, [reply.raw[:end]])
        whole = tool_calls_of(deltas)
        cut = cut_call_of(deltas)
        assert [*(call.name for call in whole), *([cut.name] if cut else [])] == names[: len(whole) + bool(cut)]
        assert cut is None or not isinstance(json_text.loaded(cut.arguments), dict)
        assert merge(deltas) == merge(merge(deltas))


@pytest.mark.parametrize("name", ["json", "llama3", "hermes", "mistral", "harmony", "glm"])
def test_where_only_calls_are_allowed_no_part_of_one_is_text(name: str) -> None:
    reply = next(each for each in REPLIES if each.call_format == name and each.calls and not each.text)
    only = replace(reply.format, calls_only=True)
    for end in range(len(reply.raw) + 1):
        assert text_of(parse(only, [reply.raw[:end]])) == ""
    assert tool_calls_of(parse(only, [reply.raw]))


def test_calls_of_built_in_tools_that_nobody_offered_are_thoughts() -> None:
    raw = '<|channel|>commentary to=browser.search <|constrain|>json<|message|>{"q": 1}<|call|>'
    deltas = parse(ReplyFormat(call_format_named("harmony")), [raw])
    assert text_of(deltas) == "" and reasoning_of(deltas) == '{"q": 1}' and not tool_calls_of(deltas)


MARKERS = {
    "closing marks in a string": lambda mark: ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "', mark),
    "strings of closing marks": lambda mark: ("hermes", '<tool_call>{"name": "now", "arguments": {', f'"{mark}": "'),
    "calls in strings": lambda mark: ("hermes", "", '<tool_call>{"name": "now", "arguments": {"a": "' + mark),
    "keys in a value": lambda mark: ("qwen3_coder", "<function=get_weather><parameter=city>", "<parameter=days"),
    "ends in a value": lambda mark: ("qwen3_coder", "<function=get_weather><parameter=city>", "</function> x "),
    "quotes": lambda mark: ("lfm2", "<|tool_call_start|>[get_weather(city='", "' "),
    "quotes and marks": lambda mark: ("lfm2", "<|tool_call_start|>[get_weather(city='", "<|tool_call_end|>' x"),
    "gemma's marks": lambda mark: ("gemma", '<|tool_call>call:now{a:<|"|>', '<tool_call|><|"|>,<|"|>'),
    "calls in thoughts": lambda mark: ("hermes", "<think>", '<tool_call>{"name": "now"}'),
    "citations": lambda mark: ("cohere", "", "<co></co: "),
    "mistral's": lambda mark: ("mistral", "", '[TOOL_CALLS][{"name": "now", "arguments": {"a": "'),
}


@pytest.mark.parametrize("made", MARKERS.values(), ids=MARKERS)
def test_the_steps_grow_with_the_text(made: Any) -> None:
    """Counted, not timed: lines that run for a text and for one four times as long, in one piece and in small ones."""
    name, begin, unit = made("</tool_call>")
    thinking = COHERE if name == "cohere" else THINK

    def steps(n: int, size: int) -> int:
        text = begin + unit * n
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        with counted() as count:
            parse(ReplyFormat(call_format_named(name), TOOLS, thinking), pieces)
        return count()

    for size in (7, 1 << 20):
        assert steps(800, size) < 5 * steps(200, size) + 2000, size


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """Counts lines of Python that run meanwhile."""
    n = 0

    def trace(frame: object, event: str, argument: object) -> Any:
        nonlocal n
        n += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lambda: n
    finally:
        sys.settrace(before)
