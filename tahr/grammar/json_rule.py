"""A JSON schema as llguidance reads it."""

from typing import Any

from tahr.grammar.alternatives import apart
from tahr.grammar.schema_check import SchemaRefused, check_of, is_walked, part_at, parts_of
from tahr.grammar.schema_place import Problem, refuse_uncompiled

# A space, or a new line and its indentation: endless space would be JSON too, and some models write it.
JSON_OPTIONS = {"whitespace_pattern": r"(\x20|\x0A[\x20\x09]{0,24})"}
MAX_FREED = 32  # parts of a schema
Rule = dict[str, Any]  # the text after %json in Lark


def json_rule(schema: Any, problem: Problem | None = None) -> Rule:
    """A JSON schema as llguidance gets it, checked and with our options; with `problem`, compiled for a trial."""
    check = check_of(schema)
    made = check.whole()
    if made is False:
        raise SchemaRefused("", "is false, and so allows nothing: write another")
    made = {} if made is True else made
    if problem:
        refuse_uncompiled(made, problem, check.origin_of)
    return {**apart(made), "x-guidance": JSON_OPTIONS}


def loose_rule(schema: Any, problem: Problem | None = None) -> Rule:
    """The rule of a loose schema: parts that no grammar can enforce allow anything of their type, or else anything."""
    for _ in range(MAX_FREED):
        try:
            return json_rule(schema, problem)
        except SchemaRefused as error:
            looser = freed(schema, parts_of(error.place))
            if looser == schema:
                break
            schema = looser
    return json_rule({"type": "object"} if isinstance(schema, dict) and schema.get("type") == "object" else {})


def freed(schema: Any, parts: list[str]) -> Any:
    """A schema that asks nothing but the type of the part at a place, or of the nearest one around that place."""
    for n in range(len(parts), -1, -1):
        found = part_at(schema, parts[:n])
        if isinstance(found, dict | bool) and (n == len(parts) or is_walked(parts[:n])):
            return with_part(schema, parts[:n], of_type(found))
    return {}


def of_type(schema: Any) -> Any:
    return {"type": schema["type"]} if isinstance(schema, dict) and schema.keys() > {"type"} else {}


def with_part(value: Any, parts: list[str], part: Any) -> Any:
    """A value with another one at a place."""
    if not parts:
        return part
    name = parts[0]
    if isinstance(value, dict):
        return {**value, name: with_part(value[name], parts[1:], part)}
    return [with_part(each, parts[1:], part) if i == int(name) else each for i, each in enumerate(value)]
