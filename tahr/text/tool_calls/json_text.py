"""JSON read piece by piece, without building values: where strings, containers and scalars end.

A model may write JSON that is broken. Readers then go on to the next character that can end a value, and never fail.
"""

import ast
import json
import re
from collections import deque
from typing import Any

from tahr.text.tool_calls.cursor import MarkSet, Reader, Sink, TextCursor, mark_set

IN_STRING = ('"', "\\")
STRUCTURE = ('"', "{", "}", "[", "]")
NO_MARKS = mark_set()
MAX_AHEAD = 1024  # characters after a mark inside a string, in which it shows whether the string ends there
REST_OF_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*"\s*', re.DOTALL)
AFTER_STRING = frozenset(",:]})")
NO_SPACE = re.compile(r"\S")
SCALAR_END = re.compile(r"[\s,\]}]")
# A string that was cut off reads to the end, also after a backslash: else it would be searched again from every quote.
JSON_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[{}\[\],]', re.DOTALL)
HALF = re.compile(r"\\u[dD][89a-fA-F]")  # JSON's escape of half a character
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
# beyond which a broken text is given up
MAX_CUTS = 8
MAX_NESTED = 64
MAX_LITERAL = 1 << 16  # characters: Python reads lists at half a megabyte a second, and holds its lock meanwhile


def space(cursor: TextCursor, sink: Sink) -> Reader[str]:
    """Pass on white space; the character after it, not taken."""
    return (yield from cursor.before(NO_SPACE, sink))


def string(cursor: TextCursor, sink: Sink, ends: MarkSet = NO_MARKS) -> Reader[bool]:
    """A string with its quotes; the next character is the first of these. False: see `container`."""
    yield from cursor.take(sink)
    return (yield from string_rest(cursor, sink, ends))


def string_rest(cursor: TextCursor, sink: Sink, ends: MarkSet = NO_MARKS) -> Reader[bool]:
    """The rest of a string after its first quote. Marks may be part of it."""
    marks = mark_set(*IN_STRING, *ends.marks)
    while (mark := (yield from cursor.until(marks, sink))) and mark != '"':
        if mark in IN_STRING:
            sink(mark)
            yield from cursor.take(sink)
        elif (yield from is_broken(cursor, REST_OF_STRING)):
            cursor.unread(mark)
            return False
        else:
            sink(mark)
            marks = mark_set(*IN_STRING)  # one look ahead is enough for a string, and takes a bounded time
    sink(mark)
    return True


def is_broken(cursor: TextCursor, rest_of_string: re.Pattern[str]) -> Reader[bool]:
    """Whether a string was never closed before the mark that was read last.

    It was not, if what would be its rest never ends, or is followed by something that cannot follow a string.
    """
    ahead = yield from cursor.ahead(MAX_AHEAD)
    rest = rest_of_string.match(ahead)
    if rest is None:
        return len(ahead) < MAX_AHEAD
    after = ahead[rest.end() : rest.end() + 1]
    return after not in AFTER_STRING if after else False


def value(cursor: TextCursor, sink: Sink, ends: MarkSet = NO_MARKS) -> Reader[bool]:
    """A value of any kind, the cursor being at its first character. False: see `container`."""
    first = yield from cursor.peek()
    if first == '"':
        return (yield from string(cursor, sink, ends))
    if first and first in "{[":
        return (yield from container(cursor, sink, ends))
    yield from cursor.before(SCALAR_END, sink)
    return True


def container(cursor: TextCursor, sink: Sink, ends: MarkSet = NO_MARKS) -> Reader[bool]:
    """An object or an array with everything in it.

    False where it is broken off by one of the marks `ends`, which is not taken.
    """
    depth = 0
    marks = mark_set(*STRUCTURE, *ends.marks)
    while mark := (yield from cursor.until(marks, sink)):
        if mark not in STRUCTURE:
            cursor.unread(mark)
            return False
        sink(mark)
        if mark == '"':
            if not (yield from string_rest(cursor, sink, ends)):
                return False
            continue
        depth += 1 if mark in "{[" else -1
        if depth == 0:
            break
    return True


def loaded(text: str) -> Any:
    """The value of a JSON text, or `INVALID`."""
    try:
        value = json.loads(text, parse_constant=refuse_constant)
        return json.loads(whole_characters(dumped(value))) if HALF.search(text) else value
    except (ValueError, RecursionError):
        return INVALID


def whole_characters(text: str) -> str:
    """The text with halves of characters that belong together joined, and any other read as U+FFFD.

    Escapes can write halves, and nobody could be sent such a text.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def loaded_prefix(text: str) -> dict[str, Any]:
    """The object of a JSON text, or, where that was cut off or is broken, its first members that are whole."""
    value = loaded(text)
    ends = [] if isinstance(value, dict) else whole_ends(text)
    while not isinstance(value, dict) and ends:
        at, closers = ends.pop()
        value = loaded(text[:at] + closers)
    return value if isinstance(value, dict) else {}


def whole_ends(text: str) -> list[tuple[int, str]]:
    """The last places where a JSON text may be cut without cutting a value, and what closes it there."""
    open_: list[str] = []
    ends: deque[tuple[int, str]] = deque(maxlen=MAX_CUTS)
    for found in JSON_MARK.finditer(text):
        mark = found[0]
        if mark in "{[":
            open_.append("}" if mark == "{" else "]")
            ends.append((found.end(), "".join(reversed(open_))))
        elif mark in "}]" and open_:
            open_.pop()
        elif mark == ",":
            ends.append((found.start(), "".join(reversed(open_))))
        if len(open_) > MAX_NESTED:
            break
    return list(ends)


def json_of_python(text: str) -> str:
    """A Python literal as JSON, also one with line breaks or apostrophes between its quotes; empty if it is none."""
    for each in (text, text.replace("\r", "\\r").replace("\n", "\\n")) if len(text) <= MAX_LITERAL else ():
        try:
            made = json.dumps(ast.literal_eval(each), ensure_ascii=False, allow_nan=False)  # JSON has no infinities
            return whole_characters(made)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return dumped(text[1:-1]) if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else ""


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def escaped(text: str) -> str:
    """Text as it stands inside a JSON string."""
    return dumped(text)[1:-1]


INVALID = object()
