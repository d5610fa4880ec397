"""Where in a schema that is, which llguidance refuses, and what is wrong with it in words of ours."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tahr.grammar.schema_check import LISTS, MAPS, SCHEMAS, Schema, SchemaRefused, part_at, parts_of, pointer

Problem = Callable[[str], str]  # llguidance's own words about a grammar; empty if nothing is wrong

MAX_TRIES = 64
INSIDE = "r"  # place of the schema in one that refers to a part of it
KIND = re.compile(r"[a-zA-Z ]*")  # the beginning of llguidance's words, without what they quote
DEFINITIONS = ("$defs", "definitions")  # definitions that nobody refers to are not compiled
VALUES = ("const", "enum", "default", "examples")  # keywords that hold no schemas
# Meanings of llguidance's words.
MEANINGS = (
    (r"oneOf constraints are not", "has a oneOf of which two branches may both fit a value: use anyOf"),
    (r"patternProperty regexes", "has patternProperties that are not disjoint: let no name fit two of them"),
    (r"Anchor '(.*)' does not", "refers to #{}, where nothing is: correct the $ref"),
    (r"Resource '(.*)' is not", "refers to {}, another document, and none is fetched: put it under $defs"),
    (r"Unimplemented keys: \[(.*)\]", "uses {}, which a grammar cannot enforce: leave it out"),
    (r"Unknown format: (.*)", "has the format {}, which a grammar cannot enforce: describe it by a pattern"),
    (r"(?s:.*)regex parse error(?s:.*)error: (.*)", "has a pattern that is no regular expression ({}): correct it"),
    (r"Invalid type: (.*)", "has the type {}, which is none: correct it"),
    (r"Unsatisfiable schema: Regex is empty", "allows nothing, because no text fits all it asks for: correct it"),
    (r"Unsatisfiable schema: (.*)", "allows nothing ({}): correct it"),
    (r"NoExtensionBias", "allows nothing: correct it"),
    (r"(.*)", "cannot be compiled ({}): simplify it"),
)


def refuse_uncompiled(schema: Schema, problem: Problem, origin_of: Callable[[str], str]) -> None:
    """Refuse a checked schema that llguidance refuses, by the smallest part of it that is refused by itself."""
    words = problem(compilable(schema))
    if words:
        place, words = PartSearch(schema, problem).smallest(words)
        raise SchemaRefused(origin_of(place), meaning_of(words))


def compilable(schema: Schema) -> str:
    return json.dumps({"grammars": [{"json_schema": schema}]})


def meaning_of(words: str) -> str:
    for pattern, meaning in MEANINGS:
        if found := re.match(pattern, words):
            return meaning.format(*(group[:200] for group in found.groups()))
    raise AssertionError("the last of them means all words")


class PartSearch:
    """Tries parts of a schema by themselves."""

    def __init__(self, schema: Schema, problem: Problem):
        self._problem = problem
        self._schema = schema
        self._moved = moved(schema)
        self._n_tries = 0

    def smallest(self, words: str) -> tuple[str, str]:
        """The place of the smallest part that is refused for the same kind of reason, and that."""
        place = ""
        kind = KIND.match(words)
        seen = {place}
        parts = self._parts(place)
        while (part := next(parts, None)) is not None and self._n_tries < MAX_TRIES:
            if part in seen:
                continue
            seen.add(part)
            found = self._problem_of(part)
            if found and kind and found.startswith(kind[0]):
                place = part
                words = found
                parts = self._parts(place)
        return place, words

    def _problem_of(self, place: str) -> str:
        self._n_tries += 1
        return self._problem(compilable({"$ref": f"#/{INSIDE}{place}", INSIDE: self._moved}))

    def _parts(self, place: str) -> Iterator[str]:
        """The places of the schemas in that at a place, and of what it refers to."""
        schema = part_at(self._schema, parts_of(place))
        if not isinstance(schema, dict):
            return
        for keyword, value in schema.items():
            here = f"{place}/{keyword}"
            if keyword in MAPS and keyword not in DEFINITIONS and isinstance(value, dict):
                yield from (f"{here}/{pointer(name)}" for name in value)
            elif keyword in LISTS and isinstance(value, list):
                yield from (f"{here}/{i}" for i in range(len(value)))
            elif keyword in SCHEMAS:
                yield here
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            yield reference.removeprefix("#")


def moved(value: Any) -> Any:
    """A schema as it must be where it lies inside another."""
    if isinstance(value, list):
        return [moved(each) for each in value]
    if not isinstance(value, dict):
        return value
    made = {key: each if key in VALUES else moved(each) for key, each in value.items()}
    reference = value.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        made["$ref"] = f"#/{INSIDE}{reference[1:]}"
    return made
