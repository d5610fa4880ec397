"""Grammars of tool calls: whatever they allow is read as calls of the tools, with arguments that fit their schemas."""

import json
import random
import re
from typing import Any

import pytest

from tahr.errors import GrammarError
from tahr.grammar.call_grammar import CallGrammar, LarkText, call_grammar
from tahr.grammar.worker import Trials, reply_to
from tahr.grammar.workers import LIMITS
from tahr.text.replies.deltas import text_of, tool_calls_of
from tahr.text.tokens.special_names import SpecialNames
from tahr.text.tool_calls.call_formats import BY_NAME
from tahr.text.tool_calls.parser import ReplyFormat, parsed
from tahr.text.tool_calls.tagged_calls import TaggedForm
from tahr.text.tool_calls.tools import Tool, tools_of

jsonschema = pytest.importorskip("jsonschema")
llguidance = pytest.importorskip("llguidance")

PLACE = {
    "name": "place",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "sure": {"type": "boolean"},
            "spots": {"type": "array", "items": {"$ref": "#/$defs/spot"}, "maxItems": 2},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
        "$defs": {"spot": {"type": "object", "properties": {"n": {"type": "null"}}, "additionalProperties": False}},
    },
}
TOOLS = {tool.name: tool for tool in tools_of([PLACE, {"name": "now", "parameters": {"additionalProperties": False}}])}
EOS = 256
FORMATS = sorted(BY_NAME)
NO_NAMES = SpecialNames({})


def task(requested: CallGrammar) -> dict[str, str]:
    """A grammar as a worker gets it."""
    made = call_grammar(requested)
    return {"kind": made.kind, "source": made.source}


class Bytes:
    """A tokenizer whose tokens are bytes, the end, and some special tokens, as llguidance wants it."""

    is_tokenizer_wrapper = True
    bos_token_id, eos_token_id = None, EOS

    def __init__(self, special: tuple[str, ...]):
        self.special = special
        self.tokens = [bytes([i]) for i in range(256)] + [b"</s>"] + [name.encode() for name in special]
        self.special_token_ids = list(range(EOS, len(self.tokens)))

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())

    def ids(self, text: str) -> list[int]:
        return [i for part in self.split(text) for i in ([part] if isinstance(part, int) else part.encode())]

    def split(self, text: str) -> list[str | int]:
        found = re.split("(" + "|".join(map(re.escape, self.special)) + ")", text) if self.special else [text]
        return [EOS + 1 + self.special.index(part) if part in self.special else part for part in found if part]


def special_of(name: str) -> tuple[str, ...]:
    """The marks that are special tokens in real models: those in odd brackets, and parts of a mark."""
    marks = [part for mark in BY_NAME[name].marks for part in re.findall(r"<[|｜][^<>]*[|｜]?>|\[[A-Z_]+\]", mark)]
    return tuple(dict.fromkeys(mark for mark in marks if "DSML" not in mark))


def walk(requested: CallGrammar, special: tuple[str, ...], seed: int) -> str | None:
    """A text that the grammar allows, by tokens drawn at random; None if it does not end soon."""
    tokenizer, draw = Bytes(special), random.Random(seed)
    index = llguidance.LLTokenizer(tokenizer, eos_token=[EOS])
    source = LarkText(requested, tokenizer.split).text()
    matcher = llguidance.LLMatcher(index, llguidance.LLMatcher.grammar_from_lark(source))
    assert not matcher.get_error(), matcher.get_error()
    form, made = requested.call_format.form, b""
    close = tokenizer.ids(form.value_end if isinstance(form, TaggedForm) else "</")
    for _ in range(600):
        if draw.random() < 0.1 and matcher.validate_tokens(close) == len(close):
            matcher.consume_tokens(close)
            made += b"".join(tokenizer.tokens[token] for token in close)
        mask = matcher.compute_bitmask()
        allowed = [i for i in range(len(tokenizer.tokens)) if mask[i // 8] >> (i % 8) & 1]
        allowed = [i for i in allowed if i < 127 or i >= EOS] or allowed
        if not allowed or matcher.is_stopped():
            return made.decode()
        ends = [i for i in allowed if i >= EOS or chr(i) in '"}]<\n']
        token = draw.choice(ends if ends and draw.random() < 0.4 else allowed)
        if token == EOS:
            return made.decode()
        assert matcher.consume_token(token)
        made += tokenizer.tokens[token]
    return None


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_grammar_allows_is_read_as_valid_calls(name: str) -> None:
    n_read = 0
    for seed in range(4):
        for special in ((), special_of(name)):
            parallel = seed % 2 == 0
            text = walk(CallGrammar(BY_NAME[name], list(TOOLS.values()), parallel), special, seed)
            if text is None:
                continue
            deltas = parsed(ReplyFormat(BY_NAME[name], TOOLS), text)
            calls = tool_calls_of(deltas)
            assert calls and not text_of(deltas) and (parallel or len(calls) == 1), text
            for call in calls:
                jsonschema.validate(json.loads(call.arguments), TOOLS[call.name].parameters)
            n_read += 1
    assert n_read > 1


@pytest.mark.parametrize("name", FORMATS)
def test_free_text_may_hold_calls_and_these_are_valid(name: str) -> None:
    requested = CallGrammar(BY_NAME[name], list(TOOLS.values()), required=False)
    for seed in range(2):
        text = walk(requested, special_of(name), seed)
        for call in tool_calls_of(parsed(ReplyFormat(BY_NAME[name], TOOLS), text or "")):
            jsonschema.validate(json.loads(call.arguments), TOOLS[call.name].parameters)


def accepts(requested: CallGrammar, text: str) -> bool:
    tokenizer = Bytes(())
    index = llguidance.LLTokenizer(tokenizer, eos_token=[EOS])
    source = LarkText(requested, tokenizer.split).text()
    matcher = llguidance.LLMatcher(index, llguidance.LLMatcher.grammar_from_lark(source))
    return all(matcher.consume_token(token) for token in text.encode()) and matcher.is_accepting()


def test_text_calls_and_schemas_as_asked() -> None:
    hermes, tools = BY_NAME["hermes"], list(TOOLS.values())
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    wrong = call.replace("now", "then")
    assert accepts(CallGrammar(hermes, tools), call) and not accepts(CallGrammar(hermes, tools), "Hi " + call)
    assert not accepts(CallGrammar(hermes, tools), wrong) and not accepts(CallGrammar(hermes, tools), "")
    free = CallGrammar(hermes, tools, required=False)
    assert accepts(free, "Hi " + call + "\n" + call) and accepts(free, "Hi <b> x") and not accepts(free, wrong)
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    either = CallGrammar(hermes, tools, required=False, content=schema)
    assert accepts(either, '{"a": 1}') and accepts(either, call) and not accepts(either, "Hi")
    bare = CallGrammar(BY_NAME["json"], tools, required=False)
    assert accepts(bare, "Hi") and accepts(bare, '{"name": "now", "arguments": {}}') and not accepts(bare, "{}")


def test_schemas_that_cannot_be_enforced_are_loosened_unless_strict() -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    loose, strict = Tool("f", parameters=schema), Tool("f", parameters=schema, strict=True)
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert accepts(CallGrammar(BY_NAME["hermes"], [loose]), call)
    for name in ("hermes", "qwen3_coder", "gemma", "lfm2"):
        with pytest.raises(GrammarError, match="uses not"):
            LarkText(CallGrammar(BY_NAME[name], [strict]), Bytes(()).split).text()


def test_a_schema_that_refers_to_itself() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    call = "<tool_call>\n<function=f>\n<parameter=next>\n{}\n</parameter>\n</function>\n</tool_call>"
    assert accepts(CallGrammar(BY_NAME["qwen3_coder"], [Tool("f", parameters=schema)]), call)
    with pytest.raises(GrammarError, match="refers to itself"):
        LarkText(CallGrammar(BY_NAME["glm"], [Tool("f", parameters=schema, strict=True)]), Bytes(()).split).text()


@pytest.mark.parametrize("name", FORMATS)
def test_constants_and_signs_in_names_and_values_are_kept(name: str) -> None:
    properties = {
        "language": {"type": "string", "enum": ["C#", "F#"]},
        "kind": {"type": "string", "const": "code"},
        "or_none": {"type": "string", "enum": ["", "b"]},
        "#n": {"type": "integer", "minimum": 1, "maximum": 3},
    }
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    tools = {"f": Tool("f", parameters=schema, strict=True)}
    for seed in range(3):
        text = walk(CallGrammar(BY_NAME[name], list(tools.values()), parallel=False), special_of(name), seed)
        [call] = tool_calls_of(parsed(ReplyFormat(BY_NAME[name], tools), text or ""))
        jsonschema.validate(json.loads(call.arguments), schema)


@pytest.mark.parametrize("name", FORMATS)
def test_arguments_may_have_names_that_are_no_words(name: str) -> None:
    properties = {
        "user-id": {"type": "integer", "minimum": 1, "maximum": 3},
        "page[size]": {"type": "integer", "minimum": 1, "maximum": 3},
        "xsi:type": {"type": "string", "const": "x"},
    }
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    tools = {"f": Tool("f", parameters=schema, strict=True)}
    text = walk(CallGrammar(BY_NAME[name], list(tools.values()), parallel=False), special_of(name), 0)
    [call] = tool_calls_of(parsed(ReplyFormat(BY_NAME[name], tools), text or ""))
    jsonschema.validate(json.loads(call.arguments), schema)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[a/]{2}$", "maxLength": 9},
        {"type": "string", "minLength": 2, "maxLength": 3},
        {"type": "string", "format": "date"},
        {"anyOf": [{"const": "x"}, {"type": "string", "enum": ["y", "z"]}]},
    ],
)
def test_texts_without_quotes_follow_their_schemas(name: str, schema: Any) -> None:
    whole = {"type": "object", "properties": {"v": schema}, "required": ["v"], "additionalProperties": False}
    tools = {"f": Tool("f", parameters=whole)}
    texts = [
        walk(CallGrammar(BY_NAME[name], list(tools.values()), parallel=False), special_of(name), i) for i in (1, 2)
    ]
    for text in filter(None, texts):
        [call] = tool_calls_of(parsed(ReplyFormat(BY_NAME[name], tools), text))
        jsonschema.validate(json.loads(call.arguments), whole, format_checker=jsonschema.FormatChecker())
    assert any(texts)


@pytest.mark.parametrize(
    "schema, good, bad",
    [
        ({"pattern": "a+$"}, "\nba", "ab"),
        ({"pattern": "^a|b"}, "anything", None),  # not enforced: an anchor in one branch
        ({"pattern": "a/|b"}, "xa/", "xa"),
        ({"minLength": 2}, "<</parameter", "é"),
        ({"minLength": 20}, "x" * 20, "a\n</parameter>\n</function>\n</tool_call>"),
        ({"minLength": 4000}, "any", None),
        ({"minLength": "2"}, "any", None),
        ({"format": "uuid"}, "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        ({"format": "duration"}, "P1Y2M3DT4H", "P1YT"),
        ({"format": "uri"}, "https://a@b.example:80/c%20d?e=f#g", "no scheme"),
        ({"format": "ipv4"}, "127.0.0.1", "256.0.0.1"),
        ({"format": "date", "pattern": "^2"}, "2024-02-29", "1999-01-01"),
        ({"anyOf": [{"enum": ["a"]}, {"type": "string"}]}, "any", None),
    ],
)
def test_what_a_text_without_quotes_may_be(schema: Any, good: str, bad: str | None) -> None:
    requested = {"type": "object", "properties": {"v": {"type": "string", **schema}}, "required": ["v"]}
    call = "<tool_call>\n<function=f>\n<parameter=v>\n{}\n</parameter>\n</function>\n</tool_call>"
    grammar = CallGrammar(BY_NAME["qwen3_coder"], [Tool("f", parameters=requested)])
    assert accepts(grammar, call.format(good)) and (bad is None or not accepts(grammar, call.format(bad)))


@pytest.mark.parametrize("pattern", ["^(?=a)b", "^(?<!a)b", r"^(a)\1$", r"^(?<n>a)\k<n>$"])
@pytest.mark.parametrize("name", ["hermes", "glm"])
def test_patterns_that_cannot_be_enforced_are_loosened_unless_strict(name: str, pattern: str) -> None:
    """A tool with one was refused, strict or not."""
    schema = {"type": "object", "properties": {"v": {"type": "string", "pattern": pattern}}}
    assert walk(CallGrammar(BY_NAME[name], [Tool("f", parameters=schema)], parallel=False), special_of(name), 1)
    with pytest.raises(GrammarError, match="write it without"):
        LarkText(CallGrammar(BY_NAME[name], [Tool("f", parameters=schema, strict=True)]), Bytes(()).split).text()


REFUSED = {  # by llguidance, not by our own checks
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "patternProperties": {"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "string"}}},
    "$ref": {"$ref": "#/$defs/nothing"},
    "document": {"$ref": "https://example.com/x.json"},
    "bounds": {"type": "integer", "minimum": 5, "maximum": 2},
    "enum": {"type": "boolean", "enum": ["true", "false"]},
    "pattern": {"type": "string", "pattern": "^(?P<a>x)(["},
    "type": {"type": "banana"},
    "lengths": {"type": "string", "minLength": 9, "maxLength": 2},
}


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "gemma", "lfm2"])
@pytest.mark.parametrize("schema", REFUSED.values(), ids=REFUSED)
def test_schemas_that_llguidance_refuses_are_loosened_unless_strict(name: str, schema: Any) -> None:
    """All were refused, strict or not, with rules of ours in the message."""
    whole = {"type": "object", "properties": {"a": schema, "ok": {"type": "integer"}}, "required": ["a"]}
    loose, strict = (
        reply_to(task(CallGrammar(BY_NAME[name], [Tool("f", "", whole, is_strict)])), NO_NAMES, Trials({}, 0, LIMITS))
        for is_strict in (False, True)
    )
    assert loose.keys() == {"text"}
    assert strict["error"].startswith("The tool f is strict. The schema at #/properties/a ")
    assert len(strict["error"]) < 300 and "llguidance" not in strict["error"]


def test_of_a_loosened_tool_the_rest_is_enforced() -> None:
    whole = {"type": "object", "properties": {"a": REFUSED["oneOf"], "ok": {"type": "integer"}}, "required": ["ok"]}
    requested = CallGrammar(BY_NAME["hermes"], [Tool("f", parameters=whole)])
    lark = LarkText(requested, Bytes(()).split, Trials({}, 0, LIMITS).problem).text()
    call = '<tool_call>\n{{"name": "f", "arguments": {}}}\n</tool_call>'
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), llguidance.LLMatcher.grammar_from_lark(lark))
    taken = [
        arguments
        for arguments in ('{"a": "x", "ok": 1}', '{"ok": 1}', '{"ok": "x"}', "{}")
        if matcher.validate_tokens([*call.format(arguments).encode()]) == len(call.format(arguments).encode())
    ]
    assert taken == ['{"a": "x", "ok": 1}', '{"ok": 1}']


def test_an_argument_may_refer_to_definitions_of_any_name_but_not_to_the_whole() -> None:
    whole = {"type": "object", "properties": {"a": {"$ref": "#/models/n"}}, "models": {"n": {"type": "integer"}}}
    call = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    requested = CallGrammar(BY_NAME["qwen3_coder"], [Tool("f", "", whole, strict=True)])
    assert accepts(requested, call.format("1")) and not accepts(requested, call.format("true"))
    whole["models"]["n"] = {"type": "object", "properties": {"next": {"$ref": "#"}}}  # type: ignore[index]
    with pytest.raises(GrammarError, match=r"at #/properties/a refers to itself as a whole"):
        LarkText(requested, Bytes(()).split).text()


def test_a_required_that_is_no_list() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": True}
    call = "<tool_call>\n<function=f>\n</function>\n</tool_call>"
    assert accepts(CallGrammar(BY_NAME["qwen3_coder"], [Tool("f", parameters=schema)]), call)
    with pytest.raises(GrammarError, match="no list"):
        LarkText(CallGrammar(BY_NAME["glm"], [Tool("f", parameters=schema, strict=True)]), Bytes(()).split).text()
