"""Calls written as tags, one per argument: `<function=name><parameter=key>value</parameter></function>` and its like.

Values have no JSON quotes, so the tool's schema says what they are. Texts are passed on as they come, other values
when they are complete.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tahr.text.tool_calls.cursor import Reader, Sink, TextCursor, drop, head_of, mark_set
from tahr.text.tool_calls.delta_buffer import DeltaBuffer
from tahr.text.tool_calls.json_text import INVALID, PYTHON_WORDS, dumped, escaped, json_of_python, loaded, space
from tahr.text.tool_calls.tools import NAME, Tool, json_type

TEXT = frozenset({"string"})
CONTAINERS = frozenset({"array", "object", "null"})
# around a value with characters that mean something in XML
CDATA = "<![CDATA["
CDATA_END = "]]>"


@dataclass(frozen=True, slots=True)
class TaggedForm:
    """The tags inside a call."""

    name_ends: tuple[str, ...]
    key_open: str
    key_end: str
    value_open: str  # between key and value; empty where the end of the key is the beginning of the value
    value_end: str
    call_close: str
    lines: bool = False  # a value stands between two line breaks that are not part of it
    cdata: bool = False  # a value may stand between XML's quotes
    says_text: str = ""  # what stands between key and value if the value is a text; then schemas are not asked


class TextValue:
    """A value that is a text, as a JSON string, passed on while it grows."""

    def __init__(self, buffer: DeltaBuffer, lines: bool):
        self._buffer = buffer
        self._lines = lines
        self._held = ""
        self._begun = False
        buffer.arguments('"')

    def push(self, piece: str) -> None:
        piece = self._held + piece
        if self._lines and not self._begun:
            piece = piece.removeprefix("\n")
        self._begun = True
        self._held = ""
        if self._lines and piece.endswith("\n"):
            piece = piece[:-1]
            self._held = "\n"
        self._buffer.arguments(escaped(piece))

    def close(self) -> None:
        """The value is complete: a line break that was held back is not part of it."""
        self._buffer.arguments('"')


@dataclass(frozen=True, slots=True)
class TaggedReader:
    """Reads one call after its opening mark."""

    cursor: TextCursor
    buffer: DeltaBuffer
    form: TaggedForm
    tools: Mapping[str, Tool]

    def section(self) -> Reader[None]:
        """A name and its arguments up to the closing tag. A name that is none is put back."""
        form = self.form
        yield from space(self.cursor, drop)
        stop, name = yield from head_of(self.cursor, *form.name_ends)
        if not stop or not NAME.fullmatch(name.strip()):
            return self.cursor.unread(name + stop) if stop or (yield from self.cursor.peek()) else None
        self.buffer.begin_call(name.strip())
        n_arguments = 0
        inside = mark_set(form.key_open, form.call_close)
        stop = stop if stop in inside.marks else (yield from self.cursor.until(inside, drop))
        while stop == form.key_open:
            self.buffer.arguments(", " if n_arguments else "{")
            yield from self._argument(self.tools.get(name.strip()))
            n_arguments += 1
            stop = yield from self.cursor.until(inside, drop)
        if stop:
            self.buffer.arguments("}" if n_arguments else "{}")
            self.buffer.end_call()

    def _argument(self, tool: Tool | None) -> Reader[None]:
        form = self.form
        _, key = yield from head_of(self.cursor, form.key_end)
        said = ""
        if form.value_open:
            _, said = yield from head_of(self.cursor, form.value_open)
        self.buffer.arguments(f"{dumped(key.strip())}: ")
        types = tool.types_of(key.strip()) if tool else frozenset()
        if form.says_text:
            types = TEXT if form.says_text in said else frozenset()
        yield from (self._text() if types == TEXT else self._other(types))

    def _text(self) -> Reader[None]:
        value = TextValue(self.buffer, self.form.lines)
        if (yield from self._value(value.push)):
            value.close()

    def _other(self, types: frozenset[str]) -> Reader[None]:
        pieces: list[str] = []
        if (yield from self._value(pieces.append)):
            text = "".join(pieces)
            if self.form.lines:
                text = text.removeprefix("\n").removesuffix("\n")
            self.buffer.arguments(json_of(text, types))

    def _value(self, sink: Sink) -> Reader[str]:
        """Pass on a value up to its end; the mark that ends it."""
        end = self.form.value_end
        marks = mark_set(end, CDATA) if self.form.cdata else mark_set(end)
        while (mark := (yield from self.cursor.until(marks, sink))) == CDATA:
            yield from self.cursor.until(mark_set(CDATA_END), sink)
        return mark


def json_of(text: str, types: frozenset[str]) -> str:
    """A value without quotes as JSON: what the schema allows it to be, else a text."""
    bare = text.strip()
    bare = PYTHON_WORDS.get(bare, bare) if types != TEXT else bare
    value = loaded(bare)
    if value is INVALID and types and types <= CONTAINERS:  # some templates write lists and objects as Python does
        return json_of_python(bare) or dumped(text)
    if value is INVALID or types == TEXT:
        return dumped(text)
    kind = json_type(value)
    fits = kind in types or (kind == "integer" and "number" in types)
    return bare if fits or "string" not in types else dumped(text)
