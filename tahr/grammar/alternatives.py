"""Alternatives of a schema that llguidance is to keep apart.

It makes one pattern of all strings of an anyOf, and of such a pattern it does not see that any plain text fits: every
token of the vocabulary is then tried, which takes thirty times as long. A string that is referred to stays a pattern of
its own, and one that any text fits is all that has to be.
"""

from typing import Any

from tahr.grammar.schema_check import LISTS, MAPS, MAX_EXACT, SCHEMAS, Schema

MAX_APART = 32  # strings of one schema: each pattern has a price of its own
# With one of these a string may fit nothing. In an anyOf that is only one alternative less, but a definition of nothing
# is an error to llguidance.
BOUND = ("const", "enum", "pattern", "format", "$ref", "allOf", "anyOf", "oneOf")
PREFIX = "tahr.string."  # beginning of all names of definitions


def apart(schema: Schema) -> Schema:
    """The schema with free strings of its anyOfs moved to definitions of their own, where a pointer finds them."""
    definitions = schema.get("$defs", {})
    if not isinstance(definitions, dict) or any(name.startswith(PREFIX) for name in definitions):
        return schema  # llguidance says what is wrong with it, or the names are taken
    moved: Schema = {}
    made = parted({key: value for key, value in schema.items() if key != "$id"}, moved)
    made |= {"$id": schema["$id"]} if "$id" in schema else {}
    return {**made, "$defs": {**made.get("$defs", {}), **moved}} if moved else made


def parted(schema: Any, moved: Schema) -> Any:
    """A schema or a part of it; `moved` takes what is referred to.

    Branches of oneOf stay: llguidance must see that no value fits two of them, and it does not look behind references.
    """
    if not isinstance(schema, dict) or "$id" in schema:  # pointers mean other places in a schema with a name of its own
        return schema
    made = {key: value if key == "oneOf" else parted_value(key, value, moved) for key, value in schema.items()}
    options = made.get("anyOf")
    if isinstance(options, list) and sum(map(may_be_string, options)) > 1:
        made["anyOf"] = [referred(each, moved) if is_free_string(each) else each for each in options]
    return made


def parted_value(keyword: str, value: Any, moved: Schema) -> Any:
    if keyword in MAPS and isinstance(value, dict):
        return {name: parted(each, moved) for name, each in value.items()}
    if keyword in LISTS and isinstance(value, list):
        return [parted(each, moved) for each in value]
    return parted(value, moved) if keyword in SCHEMAS else value


def may_be_string(option: Any) -> bool:
    kind = option.get("type", "string") if isinstance(option, dict) else "string"
    return kind == "string" or (isinstance(kind, list) and "string" in kind)


def is_free_string(option: Any) -> bool:
    if not isinstance(option, dict) or option.get("type") != "string" or option.keys() & BOUND:
        return False
    least = option.get("minLength", 0)
    most = option.get("maxLength", MAX_EXACT)
    return isinstance(least, int) and isinstance(most, int) and least <= most


def referred(option: Schema, moved: Schema) -> Schema:
    if len(moved) == MAX_APART:
        return option
    name = f"{PREFIX}{len(moved) + 1}"
    moved[name] = option
    return {"$ref": f"#/$defs/{name}"}
