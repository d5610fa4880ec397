"""Each kind of grammar as llguidance reads it."""

import json
import re
from collections.abc import Callable
from typing import Any

from tahr.errors import GrammarError
from tahr.grammar.json_rule import json_rule, loose_rule
from tahr.grammar.schema_place import Problem, compilable
from tahr.text.tokens.special_names import SpecialNames

MAX_CHOICES = 10_000


def llguidance_text(kind: str, source: str, names: SpecialNames, problem: Problem | None = None) -> str:
    """The text of a grammar for llguidance; an error names what is wrong with its source.

    With `problem` each of its schemas is compiled for a trial, to say which is refused and where, or to loosen it.
    """
    try:
        if kind in WITH_SCHEMAS:
            return WITH_SCHEMAS[kind](source, names, problem)
        return WRITERS[kind](source, names)
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise GrammarError(f"The {kind} has {half}, which is half of a character: correct it.") from error


def from_json_schema(source: str, names: SpecialNames, problem: Problem | None) -> str:
    return compilable(json_rule(parsed("json_schema", source), problem))


def from_loose_schema(source: str, names: SpecialNames, problem: Problem | None) -> str:
    return compilable(loose_rule(parsed("loose_json_schema", source), problem))


def from_json_object(source: str, names: SpecialNames) -> str:
    return compilable(json_rule({"type": "object"}))


def from_regex(source: str, names: SpecialNames) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(source)


def from_lark(source: str, names: SpecialNames) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_lark(source)


def from_gbnf(source: str, names: SpecialNames) -> str:
    from tahr.grammar.gbnf.translation import to_lark

    return from_lark(to_lark(source), names)


def from_choice(source: str, names: SpecialNames) -> str:
    choices = parsed("choice", source)
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) and each for each in choices):
        raise GrammarError("choice must be a list of texts, none of them empty.")
    if len(choices) > MAX_CHOICES:
        raise GrammarError(f"choice has {len(choices)} texts, but at most {MAX_CHOICES} are allowed: shorten the list.")
    return from_regex("|".join(map(literal, choices)), names)


def from_structural_tag(source: str, names: SpecialNames, problem: Problem | None) -> str:
    from tahr.grammar.structural_tag import to_lark

    return from_lark(to_lark(parsed("structural_tag", source), names, problem), names)


def from_tool_calls(source: str, names: SpecialNames, problem: Problem | None) -> str:
    from tahr.grammar.call_grammar import to_lark

    return from_lark(to_lark(json.loads(source), names, problem), names)


WITH_SCHEMAS: dict[str, Callable[[str, SpecialNames, Problem | None], str]] = {
    "json_schema": from_json_schema,
    "loose_json_schema": from_loose_schema,
    "structural_tag": from_structural_tag,
    "tool_calls": from_tool_calls,
}
WRITERS: dict[str, Callable[[str, SpecialNames], str]] = {
    "json_object": from_json_object,
    "regex": from_regex,
    "lark": from_lark,
    "gbnf": from_gbnf,
    "choice": from_choice,
}


def parsed(kind: str, source: str) -> Any:
    """The value that JSON text stands for."""
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"The source of the {kind} is no JSON ({error}): correct it.") from error


def literal(text: str) -> str:
    """A regular expression that matches this text alone."""
    # The signs < and > have a meaning where they are escaped.
    return re.sub(r"[^\w\s<>]", lambda found: "\\" + found[0] if ord(found[0]) < 128 else found[0], text)
