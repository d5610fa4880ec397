"""The text of an argument that stands without quotes, as a terminal of Lark: what its schema asks of it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tahr.grammar.formats import DURATION, IPV4, URI, UUID
from tahr.grammar.schema_check import SchemaRefused, checked_schema

ANYTHING = "(?s:.*)"
FORMATS = {"ipv4": IPV4, "uuid": UUID, "duration": DURATION, "uri": URI}  # the others become patterns
MAX_LEAST = 256  # characters that a text must have: llguidance gives up on thousands
SIGN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)  # one sign of a regular expression
WRITTEN = {"/": r"\/", "\n": r"\n", "\r": r"\r"}  # characters that would end an expression in Lark


def text_terminal(schema: Mapping[str, Any], end: str) -> str:
    """An expression for a text that does not hold its own end (empty: a special token); empty if any text will do.

    An error says what no grammar can enforce.
    """
    made = checked_schema(schema)
    found = [f"/{written(each)}/" for each in expressions(made)]
    return " & ".join([*found, *([f"~/{ANYTHING}{literal(end)}{ANYTHING}/"] if end else [])]) if found else ""


def texts_of(schema: Any) -> list[str]:
    """The texts that a constant or an enumeration leaves, also in alternatives; none of them: any text."""
    if not isinstance(schema, Mapping):
        return []
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(options, list):
        return [each for each in options if isinstance(each, str)]
    choices = schema.get("anyOf") or schema.get("oneOf")
    inside = [texts_of(each) for each in choices] if isinstance(choices, list) else []
    return [text for texts in inside for text in texts] if all(inside) else []


def expressions(schema: Any) -> Iterator[str]:
    """Regular expressions, all of which a text must match as a whole."""
    if not isinstance(schema, Mapping):
        return
    if "oneOf" in schema or "$ref" in schema or not is_free(schema.get("anyOf")):
        raise SchemaRefused("", "has alternatives for a text, which this model's calls cannot: use a pattern")
    if "minLength" in schema or "maxLength" in schema:
        yield length(schema.get("minLength", 0), schema.get("maxLength"))
    if isinstance(schema.get("pattern"), str):
        yield whole(schema["pattern"])
    if schema.get("format") in FORMATS:
        yield FORMATS[schema["format"]]
    for each in schema.get("allOf") or ():
        yield from expressions(each)


def is_free(choices: Any) -> bool:
    """Whether one of the alternatives, if there are any, is any text."""
    return not isinstance(choices, list) or any(not texts_of(each) and not [*expressions(each)] for each in choices)


def length(least: Any, most: Any) -> str:
    """An expression for so many characters; `most` is None for any number."""
    numbers = [each for each in (least, most) if each is not None]
    if any(type(each) is not int for each in numbers) or not 0 <= least <= min(numbers[-1], MAX_LEAST):
        what = f"asks for {least!r:.20} to {most!r:.20} characters, which a grammar cannot enforce"
        raise SchemaRefused("", f"{what}: lower minLength, or leave it out")
    return f"(?s:.{{{least},{'' if most is None else most}}})"


def whole(pattern: str) -> str:
    """An expression for a whole text of one that is searched for in it."""
    signs = SIGN.findall(pattern)
    begins = signs[:1] == ["^"]
    ends = signs[-1:] == ["$"]
    inside = signs[begins : len(signs) - ends]
    if "^" in inside or "$" in inside or ((begins or ends) and has_branches(inside)):
        raise SchemaRefused("", f"has the pattern {pattern[:60]!r}, which this model's calls cannot: write ^(...)$")
    return f"{'' if begins else ANYTHING}(?:{''.join(inside)}){'' if ends else ANYTHING}"


def has_branches(signs: list[str]) -> bool:
    """Whether alternatives stand outside all groups, so that an anchor belongs to one of them."""
    depth = 0
    for sign in signs:
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and depth == 0:
            return True
    return False


def written(expression: str) -> str:
    """An expression between the slashes of Lark."""
    return re.sub(r"\\.|[/\n\r]", lambda found: WRITTEN.get(found[0], found[0]), expression, flags=re.DOTALL)


def literal(text: str) -> str:
    return "".join(f"\\x{{{ord(letter):x}}}" for letter in text)
