"""JSON schemas: the JSON-Schema-Test-Suite, what is rewritten at the door, and random schemas."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

import random_schemas
from assets import need
from tahr import LLM, EngineConfig, SamplingParams
from tahr.errors import GrammarError
from tahr.grammar import Grammar
from tahr.grammar.schema_check import checked_schema

jsonschema = pytest.importorskip("jsonschema")
json_schema_suite = pytest.importorskip("json_schema_suite")  # needs llguidance

PAGE = Path(__file__).parents[2] / "docs" / "json-schema.md"


def test_the_suite_is_judged_rightly_and_the_page_says_what_is_refused() -> None:
    """Takes seconds, because it is the whole suite, every draft."""
    archive = need("json-schema-test-suite.tar.xz")
    reports = {draft: json_schema_suite.run(archive, draft) for draft in json_schema_suite.DRAFTS}
    assert [wrong for report in reports.values() for wrong in report.wrong] == []
    assert json_schema_suite.table(reports) in PAGE.read_text(encoding="utf-8"), (
        "run tests/helpers/json_schema_suite.py"
    )


def accepts(schema: Any, text: str) -> bool:
    return json_schema_suite.accepts(json_schema_suite.compiled(schema), text)


REFUSED = [
    ({"not": {}}, "uses not"),
    ({"properties": {"a": {"uniqueItems": True}}}, "at #/properties/a uses uniqueItems"),
    ({"format": "hostname"}, "format hostname"),
    ({"const": 2**53 + 1}, "beyond 2"),
    ({"enum": [{"a": [2**60]}]}, "beyond 2"),
    ({"minProperties": 2}, "minProperties 2"),
    ({"pattern": r"\bword"}, "word boundary"),
    ({"pattern": "a\\"}, "backslash"),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "contentEncoding": "base64"}, "contentEncoding"),
    ({"items": 5}, "is no schema"),
    ({"format": ["date"]}, "format that is no text"),
    ({"allOf": 5, "format": "date", "pattern": "^2"}, "allOf must be an array"),
    ([], "is no schema"),
    (False, "allows nothing"),
    ({"type": "string", "pattern": "^A", "format": "date"}, "at # allows nothing, because no text"),
    ({"$ref": "https://example.com/other.json"}, "other.json"),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "use anyOf"),
    ({"properties": {"a/b": {"items": {"type": "banana"}}}}, "at #/properties/a~1b/items has the type banana"),
    (
        {"items": {"type": "integer", "minimum": 2, "maximum": 1}, "minItems": 1, "type": "array"},
        "at #/items allows noth",
    ),
    ({"properties": {"a": {"pattern": "(["}}}, "at #/properties/a has a pattern that is no regular expression"),
    ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "at #/properties/a refers to #/\\$defs/b, where no schema is"),
    (
        {"$ref": "#/components/schemas/A", "components": {"schemas": {"A": {"not": {}}}}},
        "at #/components/schemas/A uses",
    ),
    ({"$ref": "#/x/0", "x": [{"items": {"$ref": "#/y"}}], "y": {"oneOf": [{}, {}]}}, "at #/y has a oneOf"),
    ({"$ref": "#/a%20b", "a b": {"minProperties": 2}}, "at #/a%20b has minProperties 2"),
    ({"$ref": "#/x", "x": {"$id": "b", "not": {}}}, "an \\$id where no keyword leads to"),
    ({"$id": "http://a/b", "$ref": "http://a/b#/x", "x": {"not": {}}}, "where no keyword leads to"),
    ({"$ref": "#here", "contentSchema": {"$anchor": "here", "not": {}}}, "#here, where nothing is"),
    ({"$ref": "#/x", "x": {}, "$defs": {"tahr.place.1": {}}}, "call it something else"),
]


@pytest.mark.parametrize("schema, words", REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        json_schema_suite.compiled(schema)


def test_schemas_in_schemas_end_somewhere() -> None:
    deep: Any = {}
    for _ in range(100):
        deep = {"items": deep}
    with pytest.raises(GrammarError, match="deep"):
        checked_schema(deep)


SAME = [
    ({"minLength": 2.0, "type": "string"}, '"ab"', '"a"'),
    ({"uniqueItems": False, "type": "array"}, "[1,1]", "{}"),
    ({"type": "integer", "format": "int32"}, "5", '"5"'),
    ({"type": "string", "pattern": "^.$"}, '"é"', '"\\n"'),
    ({"type": "string", "pattern": r"^[\s[&]$"}, '"["', '"x"'),
    ({"type": "string", "pattern": r'^[^\\/:*?"<>|]+$'}, '"a b\\n\\u0002é"', '"a\\\\b"'),
    ({"type": "string", "pattern": r'^[^"]*$'}, '"a\\\\b"', '"a\\"b"'),
    ({"type": "string", "pattern": "^[^ -~]$"}, '"\\t"', '"\\\\"'),
    ({"type": "string", "pattern": r"^[^a-z-]$"}, '"A"', '"-"'),
    ({"type": "string", "pattern": r"^[+--]$"}, '","', '"."'),
    ({"type": "string", "pattern": r"^[*--/]$"}, '"/"', '"."'),
    ({"type": "string", "pattern": r"^[--/]$"}, '"."', '","'),
    ({"type": "string", "pattern": r"^\<a\>$"}, '"<a>"', '"a"'),
    ({"type": "string", "pattern": r"^\cJ\0$"}, '"\\n\\u0000"', '"J0"'),
    ({"type": "string", "pattern": "^2", "format": "date"}, '"2020-02-29"', '"1999-01-01"'),
    ({"minProperties": 2, "required": ["a", "b"], "type": "object"}, '{"a":1,"b":1}', '{"a":1}'),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "0.0001", "0"),
    ({"type": "number", "exclusiveMinimum": 0, "minimum": 0.1, "exclusiveMaximum": 0.5}, "0.1", "0.05"),
    ({"type": "number", "exclusiveMaximum": -1, "minimum": -1.5}, "-1.25", "-1"),
    ({"type": "string", "pattern": r"^[\x00-\x1f]$"}, '"\\u0002"', '"\\""'),
    ({"type": "string", "pattern": r"^[a\u0000-!#-\x7f]$"}, '"\\n"', '"\\""'),
    ({"type": "string", "pattern": r"^[\u0000-\x7f]$"}, '"\\u0001"', '"é"'),
    ({"type": "string", "if": {}, "propertyNames": True, "dependencies": {}}, '"a"', "1"),
    ({"$ref": "#/x/y", "x": {"y": {"type": "string", "format": "date"}}}, '"2024-02-29"', '"2023-02-29"'),
    ({"$ref": "#/x/y", "x": {"y": {"type": "string", "format": "url"}}}, '"a"', "1"),
    ({"$ref": "#/x/é", "x": {"é": {"items": {"$ref": "#/x/é"}, "type": "array"}}}, "[[],[[]]]", "[[],[1]]"),
]


@pytest.mark.parametrize("schema, good, bad", SAME, ids=[json.dumps(schema) for schema, _, _ in SAME])
def test_what_is_rewritten_means_the_same(schema: Any, good: str, bad: str) -> None:
    matcher = json_schema_suite.compiled(schema)
    assert json_schema_suite.accepts(matcher, good)
    assert not json_schema_suite.accepts(matcher, bad)


def test_bounds_that_are_no_numbers_are_left_to_llguidance() -> None:
    for odd in ({"minimum": "a"}, {"exclusiveMinimum": True}, {"maximum": None}):
        schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5} | odd
        assert checked_schema(schema) == schema


def test_branches_behind_references_are_told_apart() -> None:
    pets = {
        "$defs": {
            "Cat": {
                "type": "object",
                "properties": {"kind": {"const": "cat"}, "n": {"type": "integer"}},
                "required": ["kind", "n"],
            },
            "Dog": {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]},
        },
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    }
    assert accepts(pets, '{"kind":"cat","n":3}') and accepts(pets, '{"kind":"dog"}')
    assert not accepts(pets, '{"kind":"cat"}')


@pytest.mark.parametrize("name", ["next", "a/b", "50% é"])
def test_branches_behind_references_may_hold_themselves(name: str) -> None:
    either = {"oneOf": [{"$ref": "#/$defs/Leaf"}, {"$ref": "#/$defs/Node"}]}
    tree = {
        "$defs": {
            "Leaf": {"type": "integer"},
            "Node": {
                "type": "object",
                "properties": {"kind": {"const": "node"}, name: {"anyOf": [either, {"type": "null"}]}},
                "required": ["kind", name],
                "additionalProperties": False,
            },
        },
        **either,
    }
    for end, is_good in (("7", True), ("null", True), ('"x"', False), ('{"kind":"leaf"}', False)):
        text = end
        for _ in range(3):
            text = f'{{"kind":"node",{json.dumps(name, ensure_ascii=False)}:{text}}}'
        assert accepts(tree, text) is is_good, text


def test_branches_may_lie_where_no_keyword_leads_to() -> None:
    """OpenAPI's descriptions have them there."""
    cat = {"type": "object", "properties": {"kind": {"const": "cat"}, "kit": {"$ref": "#/components/Pet"}}}
    dog = {"type": "object", "properties": {"kind": {"const": "dog"}, "a": {"minimum": 1, "type": "integer"}}}
    pet = {"oneOf": [{"$ref": "#/components/Cat"}, {"$ref": "#/components/Dog"}]}
    needed = {"required": ["kind"], "additionalProperties": False}
    schema = {"$ref": "#/components/Pet", "components": {"Cat": cat | needed, "Dog": dog | needed, "Pet": pet}}
    assert accepts(schema, '{"kind":"cat","kit":{"kind":"dog","a":1}}')
    assert not accepts(schema, '{"kind":"cat","kit":{"kind":"dog","a":0}}')


def test_what_cannot_be_enforced_is_left_out_of_a_loose_schema_and_the_rest_is_kept() -> None:
    bad = [schema for schema, _ in REFUSED if isinstance(schema, dict)]
    for schema in bad:
        whole = {"type": "object", "properties": {"bad": schema, "n": {"type": "integer"}}, "required": ["n"]}
        loose = json_schema_suite.compiled(whole, "loose_json_schema")
        assert json_schema_suite.accepts(loose, '{"n":1}')
        assert "$ref" in schema or not json_schema_suite.accepts(loose, '{"n":"x"}'), schema
    bound = json_schema_suite.compiled({"minimum": 5, "maximum": 2, "type": "integer"}, "loose_json_schema")
    assert json_schema_suite.accepts(bound, "7") and not json_schema_suite.accepts(bound, '"a"')


def test_deep_branches_behind_references_are_not_too_deep() -> None:
    deep: dict[str, Any] = {"const": 1}
    for _ in range(12):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    schema = {"$defs": {"Deep": deep}, "oneOf": [{"$ref": "#/$defs/Deep"}, {"type": "null"}]}
    assert accepts(schema, '{"a":' * 12 + "1" + "}" * 12)


def test_a_deep_constant_behind_a_reference_is_left_to_llguidance() -> None:
    deep: Any = 1
    for _ in range(1500):
        deep = [deep]
    schema = {"$defs": {"Deep": {"const": deep}}, "oneOf": [{"$ref": "#/$defs/Deep"}, {"type": "null"}]}
    assert checked_schema(schema)["oneOf"][0]["const"] is deep


ENDLESS = {"oneOf": [{"$ref": "#/$defs/0"}, {"type": "null"}], "$defs": {"0": {"oneOf": [{"$ref": "#/$defs/0"}]}}}
DOUBLING = {str(i): {"oneOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)}
GROWING = {
    "endless": (json.dumps(ENDLESS), "use anyOf"),
    "doubling": (json.dumps({"$ref": "#/$defs/0", "$defs": DOUBLING | {"40": {"type": "null"}}}), "too many branches"),
    "nested": (f'{{"const":{"[" * 700}{"]" * 700}}}', "recursion limit"),
}


@pytest.mark.parametrize("source, problem", GROWING.values(), ids=GROWING)
def test_what_grows_without_end_is_refused_soon(source: str, problem: str) -> None:
    with pytest.raises(GrammarError, match=problem):
        json_schema_suite.compiled(json.loads(source))


@pytest.mark.parametrize("name", ["date", "time", "date-time", "ipv6", "email"])
def test_a_format_keeps_its_value_whatever_stands_beside_it(name: str) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "format": name}}, "required": ["x"]}
    good = {
        "date": "2024-02-29",
        "time": "12:00:00Z",
        "date-time": "2024-02-29T23:59:60Z",
        "ipv6": "::1",
        "email": "a@b.c",
    }
    assert accepts(schema, json.dumps({"x": good[name]}, separators=(",", ":")))
    assert not accepts(schema, '{"x":"2023-02-29"}')
    jsonschema.validate({"x": good[name]}, schema)


def test_random_schemas_hold_and_disturb_nobody(stories: Path) -> None:
    """The small version of `benchmarks/grammar.py schemas`."""
    made = [random_schemas.schema(random.Random(seed), depth=1) for seed in range(12)]
    free = [SamplingParams(temperature=1, seed=seed, max_tokens=40) for seed in range(2)]
    with LLM(str(stories), config=EngineConfig(max_batch_size=8)) as llm:
        alone = [each.token_ids for each in llm.generate(["Once upon", "There was"], free, progress=False)]
        bound = [
            SamplingParams(temperature=1, seed=seed, max_tokens=400, grammar=Grammar("json_schema", schema))
            for seed, schema in enumerate(made)
        ]
        done = llm.generate(["Once"] * len(made) + ["Once upon", "There was"], [*bound, *free], progress=False)
    assert [each.token_ids for each in done[len(made) :]] == alone
    complete = [(schema, each) for schema, each in zip(made, done, strict=False) if each.finish_reason == "stop"]
    assert len(complete) > len(made) / 2
    validator = jsonschema.Draft202012Validator
    for schema, each in complete:
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(json.loads(each.text))
    assert {each.finish_reason for each in done[: len(made)]} <= {"stop", "length"}
