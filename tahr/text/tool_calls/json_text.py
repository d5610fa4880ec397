"""JSON read piece by piece, without building values: where strings, containers and scalars end.

A model may write JSON that is broken. Readers then go on to the next character that can end a value, and never fail.
"""

import json
import re
from typing import Any

from tahr.text.tool_calls.cursor import Reader, Sink, TextCursor, mark_set

IN_STRING = mark_set('"', "\\")
STRUCTURE = mark_set('"', "{", "}", "[", "]")
NO_SPACE = re.compile(r"\S")
SCALAR_END = re.compile(r"[\s,\]}]")


def space(cursor: TextCursor, sink: Sink) -> Reader[str]:
    """Pass on white space; the character after it, not taken."""
    return (yield from cursor.before(NO_SPACE, sink))


def string(cursor: TextCursor, sink: Sink) -> Reader[None]:
    """A string with its quotes; the next character is the first of these."""
    yield from cursor.take(sink)
    yield from string_rest(cursor, sink)


def string_rest(cursor: TextCursor, sink: Sink) -> Reader[None]:
    """The rest of a string after its first quote."""
    while (mark := (yield from cursor.until(IN_STRING, sink))) == "\\":
        sink(mark)
        yield from cursor.take(sink)
    sink(mark)


def value(cursor: TextCursor, sink: Sink) -> Reader[None]:
    """A value of any kind, the cursor being at its first character."""
    first = yield from cursor.peek()
    if first == '"':
        yield from string(cursor, sink)
    elif first and first in "{[":
        yield from container(cursor, sink)
    else:
        yield from cursor.before(SCALAR_END, sink)


def container(cursor: TextCursor, sink: Sink) -> Reader[None]:
    """An object or an array with everything in it."""
    depth = 0
    while mark := (yield from cursor.until(STRUCTURE, sink)):
        sink(mark)
        if mark == '"':
            yield from string_rest(cursor, sink)
            continue
        depth += 1 if mark in "{[" else -1
        if depth == 0:
            return


def loaded(text: str) -> Any:
    """The value of a JSON text, or `INVALID`."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return INVALID


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def escaped(text: str) -> str:
    """Text as it stands inside a JSON string."""
    return dumped(text)[1:-1]


INVALID = object()
