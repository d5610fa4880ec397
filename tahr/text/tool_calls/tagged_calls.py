"""Calls written as tags, one per argument: `<function=name><parameter=key>value</parameter></function>` and its like.

Values have no JSON quotes, so the tool's schema says what they are. Texts are passed on as they come, other values
when they are complete.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from tahr.text.tool_calls.cursor import MAX_HEAD_CHARS, MarkSet, Reader, Sink, TextCursor, drop, head_of, mark_set
from tahr.text.tool_calls.delta_buffer import DeltaBuffer
from tahr.text.tool_calls.json_text import INVALID, PYTHON_WORDS, dumped, escaped, json_of_python, loaded, space
from tahr.text.tool_calls.tools import NAME, Tool, json_type

TEXT = frozenset({"string"})
CONTAINERS = frozenset({"array", "object", "null"})
WRAPPERS = ("arguments", "input", "parameters")
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
    says_text: str = ""  # mark between a key and a value that is a text; schemas are not consulted then


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
    ends: MarkSet  # marks around calls, which also end one that is broken

    def section(self) -> Reader[None]:
        """A name and its arguments up to the closing tag. A name that is none is put back."""
        form = self.form
        yield from space(self.cursor, drop)
        stop, name = yield from head_of(self.cursor, *form.name_ends)
        if not stop or not NAME.fullmatch(name.strip()):
            return self.cursor.unread(name + stop) if stop or (yield from self.cursor.peek()) else None
        self.buffer.begin_call(name.strip())
        keys: list[str] = []
        inside = mark_set(form.key_open, form.call_close, *self.ends.marks)
        stop = stop if stop in (form.key_open, form.call_close) else (yield from self.cursor.until(inside, drop))
        before = "{"
        while stop == form.key_open:
            self.buffer.arguments(before)
            yield from self._argument(self.tools.get(name.strip()), keys)
            before = ", " if keys else ""
            stop = yield from self.cursor.until(inside, drop)
        if stop:
            self.buffer.arguments("{}" if before == "{" else "}")
            self.buffer.end_call()
            if stop != form.call_close:
                self.cursor.unread(stop)

    def _argument(self, tool: Tool | None, keys: list[str]) -> Reader[None]:
        form = self.form
        _, key = yield from head_of(self.cursor, form.key_end)
        keys.append(key.strip())
        said = ""
        if form.value_open:
            _, said = yield from head_of(self.cursor, form.value_open)
        known = frozenset(tool.parameters.get("properties") or ()) if tool else frozenset()
        if keys[1:] == [] and keys[0] in WRAPPERS and known and keys[0] not in known:
            return (yield from self._wrapped(keys, known))
        self.buffer.arguments(f"{dumped(key.strip())}: ")
        types = tool.types_of(key.strip()) if tool else frozenset()
        if form.says_text:
            types = TEXT if form.says_text in said else frozenset()
        others = known.difference(keys)
        yield from (self._text(others) if types == TEXT else self._other(types, others))

    def _wrapped(self, keys: list[str], known: Set[str]) -> Reader[None]:
        """All arguments as one, which no tool has: they are taken out of it, and take its place among the `keys`."""
        pieces: list[str] = []
        if not (yield from self._value(pieces.append, known)):
            return
        text = "".join(pieces)
        inside = loaded(text)
        if not isinstance(inside, dict) or not inside.keys() <= known:
            return self.buffer.arguments(f"{dumped(keys[0])}: {json_of(text, frozenset())}")
        keys[:] = inside
        # Python would write 1e999 as a word that is no JSON.
        return self.buffer.arguments(text.strip()[1:-1].strip())

    def _text(self, others: Set[str]) -> Reader[None]:
        value = TextValue(self.buffer, self.form.lines)
        if (yield from self._value(value.push, others)):
            value.close()

    def _other(self, types: frozenset[str], others: Set[str]) -> Reader[None]:
        pieces: list[str] = []
        if (yield from self._value(pieces.append, others)):
            text = "".join(pieces)
            if self.form.lines:
                text = text.removeprefix("\n").removesuffix("\n")
            self.buffer.arguments(json_of(text, types))

    def _value(self, sink: Sink, others: Set[str]) -> Reader[bool]:
        """Pass on a value up to its end; whether it has one.

        Where the mark of that is missing, the key of another argument ends it, or the end of the call.
        """
        form = self.form
        marks = mark_set(form.value_end, form.key_open, form.call_close, *([CDATA] if form.cdata else ()))
        while (mark := (yield from self.cursor.until(marks, sink))) not in ("", form.value_end):
            if mark == CDATA:
                yield from self.cursor.until(mark_set(CDATA_END), sink)
            elif (yield from self._is_over(mark, others)):
                self.cursor.unread(mark)
                return True
            else:
                sink(mark)
        return bool(mark)

    def _is_over(self, mark: str, others: Set[str]) -> Reader[bool]:
        """Whether a mark inside a value is none of its text."""
        ahead = yield from self.cursor.ahead(MAX_HEAD_CHARS)
        if mark == self.form.key_open:
            key, end, _ = ahead.partition(self.form.key_end)
            return bool(end) and key.strip() in others
        rest = ahead.lstrip()
        return len(ahead) < MAX_HEAD_CHARS if not rest else self.ends.pattern.match(rest) is not None


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
