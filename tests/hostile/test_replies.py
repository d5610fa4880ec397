"""Replies that strangers make a model write, and schemas of the tools they offer for them."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tahr.errors import GrammarError
from tahr.grammar.call_grammar import CallGrammar, call_grammar
from tahr.grammar.workers import SLOW_CPU_S, CompileJob, ComputedTooLong, VocabularyFacts, Worker
from tahr.text.replies.deltas import tool_calls_of
from tahr.text.replies.thinking import KNOWN
from tahr.text.tool_calls.call_formats import BY_NAME
from tahr.text.tool_calls.parser import ReplyFormat, ReplyParser, parsed
from tahr.text.tool_calls.tools import Tool

Schema = dict[str, Any]

N_CHARS = 200_000
MAX_PARSE_S = 8.0  # one to four are enough; where the time is not linear, it is ten and more
MAX_SENTENCE = 800
TOOLS = {"f": Tool("f", "", {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}})}
THINK = next(each for each in KNOWN if each.open == "<think>")
# What a reply begins with and what it repeats without end, by the name of the call format.
FLOODS = [
    ("olmo3", "", '<function_calls>{"'),
    ("olmo3", "<function_calls>f(a='", "',b='"),
    ("pythonic", "[f(a=", "["),
    ("pythonic", "[f(", "a='x', "),
    ("llama4_pythonic", "", "<|python_start|>["),
    ("functiongemma", "", "<start_function_call>call:f"),
    ("functiongemma", "<start_function_call>call:f{a:", "<escape>"),
    ("functiongemma", "<start_function_call>call:f{", "a:["),
    ("phi4_mini", "", "functools["),
    ("xlam", "", '[{"name": "f", "arguments": {"a": "'),
    ("internlm", "", "<|action_start|><|plugin|>{"),
    ("longcat", '<longcat_tool_call>{"name": "f", "arguments": {"a": "', "</longcat_tool_call>"),
    ("granite_20b", "", '<function_call> {"arguments": '),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "', "<tool_call>"),
    ("mistral_args", "", "[TOOL_CALLS]["),
    ("qwen3_coder", "<tool_call><function=f>", "<parameter=a>"),
    ("qwen3_coder", "<tool_call><function=f><parameter=a>", "<parameter=b"),
    ("glm", "<tool_call>f<arg_key>a</arg_key><arg_value>", "</tool_call>x"),
    ("step3", "<steptml:invoke name=", "<｜tool_call_begin｜>"),
    ("cohere", "", "</co:"),
]


@pytest.mark.parametrize("thinks", [False, True], ids=["text", "open thought"])
@pytest.mark.parametrize(("name", "begin", "repeated"), FLOODS)
def test_floods_of_marks_take_linear_time(name: str, begin: str, repeated: str, thinks: bool) -> None:
    """In a thought that is never closed all the rest is read at once."""
    reply_format = ReplyFormat(BY_NAME[name], TOOLS, THINK, thinks)
    parser = ReplyParser(reply_format)
    began = time.thread_time()
    parser.push(begin + repeated * (N_CHARS // len(repeated)))
    parser.flush()
    assert time.thread_time() - began < MAX_PARSE_S


@pytest.mark.parametrize(
    ("written", "arguments"), [('{"a": "x", "b": 1e999}', '{"a": "x", "b": 1e999}'), ("{}", "{}"), (" {} ", "{}")]
)
def test_arguments_written_as_one_stay_json(written: str, arguments: str) -> None:
    begin = f"<tool_call><function=f><parameter=arguments>{written}</parameter>"
    end = "</function></tool_call>"
    reply_format = ReplyFormat(BY_NAME["qwen3_coder"], TOOLS)
    assert [call.arguments for call in tool_calls_of(parsed(reply_format, begin + end))] == [arguments]
    [call] = tool_calls_of(parsed(reply_format, f"{begin}<parameter=b>2</parameter>{end}"))
    assert json.loads(call.arguments)["b"] == 2


# ---- schemas --------------------------------------------------------------------------------------------------------


def ref(to: Any) -> Schema:
    return {"$ref": to}


def of_properties(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties}


def row(n: int, then: Any, place: str = "$defs") -> Schema:
    """Definitions of which each refers to the next."""
    return {place: {f"x{i}": ref(f"#/{place}/x{i + 1}") for i in range(n)} | {f"x{n}": then}}


def doubled(keyword: str) -> Schema:
    pairs = {f"x{i}": {keyword: [ref(f"#/c/x{i + 1}")] * 2} for i in range(40)}
    return {"c": pairs | {"x40": {"type": "string"}}, **of_properties(a=ref("#/c/x0"))}


# Schemas of tools, and whether they become a grammar where the tool is not strict.
SCHEMAS: dict[str, tuple[Schema, bool]] = {
    "to numbers, texts and lists": (
        {"x": 5, "y": "t", "z": [1]} | of_properties(a=ref("#/x"), b=ref("#/y"), c=ref("#/z"), d=ref("#/z/-1")),
        True,
    ),
    "of other types": (of_properties(a=ref(5), b=ref(None), c=ref(["#"]), d=ref({}), e=ref("")), True),
    "escapes": (
        {"a/b": {}, "m~n": {}, "%": {}}
        | of_properties(a=ref("#/a~1b"), b=ref("#/m~0n"), c=ref("#/%25"), d=ref("#/%"), e=ref("#/~2"), f=ref("#/%ff")),
        True,
    ),
    "slashes": (of_properties(a=ref("#" + "/" * 5000)), True),
    "half characters": (of_properties(a=ref("#/\ud800")), False),
    "a long name": ({"c": {"k" * 100_000: {"not": {}}}} | of_properties(a=ref("#/c/" + "k" * 100_000)), True),
    "other documents": (of_properties(a=ref("file:///etc/passwd"), b=ref("http://[::1"), c=ref("\x00")), True),
    "a ring": ({"c": {"x": ref("#/c/y"), "y": ref("#/c/x")}} | of_properties(a=ref("#/c/x")), True),
    "a long row": (row(5000, {}) | of_properties(a=ref("#/$defs/x0")), False),
    "a row into nothing": (row(5000, ref("#/nothing"), "c") | of_properties(a=ref("#/c/x0")), False),
    "a long ring": (row(3000, ref("#/$defs/x0")) | of_properties(a=ref("#/$defs/x0")), False),
    "to 5,000 places that are not": (of_properties(**{f"p{i}": ref(f"#/c/x{i}") for i in range(5000)}), True),
    "to 10,000 places": (
        {"c": {f"x{i}": {} for i in range(10_000)}}
        | of_properties(**{f"p{i}": ref(f"#/c/x{i}") for i in range(10_000)}),
        False,
    ),
    "5,000 parts to loosen": (of_properties(**{f"p{i}": {"type": "string", "not": {}} for i in range(5000)}), True),
    "oneOf doubled": (doubled("oneOf"), True),
    "anyOf doubled": (doubled("anyOf"), True),
    "allOf doubled": (doubled("allOf"), True),
}
# The same where each argument is written by itself.
TAGGED: dict[str, tuple[Schema, bool]] = {
    "a long enumeration": (of_properties(a={"type": "string", "enum": [f"v{i}" for i in range(20_000)]}), True),
    "5,000 arguments": (of_properties(**{f"p{i}": ref(f"#/c/x{i}") for i in range(5000)}), False),
    "anyOf doubled": (doubled("anyOf"), False),
}
CASES = [("hermes", name, *each) for name, each in SCHEMAS.items()]
CASES += [("qwen3_coder", name, *each) for name, each in TAGGED.items()]
SIMPLE = of_properties(a={"type": "string"})


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker(VocabularyFacts({"</s>": 0}, 1), SLOW_CPU_S)
    yield made
    made.close()


def text_of(worker: Worker, call_format: str, schema: Schema, strict: bool) -> str:
    """The grammar of a tool's calls."""
    asked = call_grammar(CallGrammar(BY_NAME[call_format], [Tool("f", "", schema, strict)]))
    job = CompileJob()
    try:
        return worker.text_of(asked.kind, asked.source, job)
    finally:
        job.close()


@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
@pytest.mark.parametrize(
    ("call_format", "schema", "is_loosened"),
    [(each[0], *each[2:]) for each in CASES],
    ids=[f"{each[0]}-{each[1]}" for each in CASES],
)
def test_odd_schemas_are_loosened_or_refused_in_a_sentence(
    worker: Worker, call_format: str, schema: Schema, is_loosened: bool, strict: bool
) -> None:
    try:
        assert text_of(worker, call_format, schema, strict)
    except ComputedTooLong:  # the server has a sentence for this
        assert not is_loosened or strict
    except GrammarError as error:
        assert not is_loosened or strict, error
        assert len(str(error)) < MAX_SENTENCE and str(error).endswith(".") and " 3 s" not in str(error)
        assert "Parser Error" not in str(error)
    assert text_of(worker, "hermes", SIMPLE, strict)
