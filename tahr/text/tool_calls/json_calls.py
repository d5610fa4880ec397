"""Calls written as JSON objects: `{"name": ..., "arguments": {...}}`, alone, in a row or in an array."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tahr.text.tool_calls.cursor import HeldText, MarkSet, Reader, Sink, TextCursor, TooMuchHeld, drop
from tahr.text.tool_calls.delta_buffer import DeltaBuffer
from tahr.text.tool_calls.json_text import INVALID, NO_MARKS, loaded, space, string, value
from tahr.text.tool_calls.tools import NAME, Tool

MAX_HELD_CHARS = 4096  # limit on an object that may be a call, before its name is known
BETWEEN = "[],;}"  # separators of calls, also where a brace is one too many
WHITE = " \t\r\n"
# Keys by which an object without tags around it may begin, if it is a call.
FIRST_KEYS = frozenset({"name", "tool_name", "type", "id", "function", "arguments", "parameters", "tool_call_id"})


@dataclass(frozen=True, slots=True)
class JsonForm:
    """Under which keys an object has the name and the arguments. Without any, the first key is the name itself."""

    names: frozenset[str] = frozenset({"name", "tool_name", "function"})
    arguments: frozenset[str] = frozenset({"arguments", "parameters"})
    takes_code: bool = False  # text after an opening mark that is no JSON is code for a tool

    @property
    def is_keyed(self) -> bool:
        return not self.names


@dataclass(slots=True)
class JsonCall:
    """A call while its object is read. The arguments may come before the name: then they wait for it."""

    buffer: DeltaBuffer
    known: Callable[[str], bool]
    held: Sink
    begun: bool = False
    waiting: list[str] = field(default_factory=list)
    has_arguments: bool = False
    has_members: bool = False

    def keep(self, piece: str) -> None:
        """Text that is needed only if this turns out to be no call."""
        if not self.begun:
            self.held(piece)

    def may_begin_with(self, key: object) -> bool:
        """Whether a call may have this key first; between tags everything is meant to be a call."""
        is_first = not self.has_members
        self.has_members = True
        return self.held is drop or not is_first or key in FIRST_KEYS

    def name(self, text: str) -> bool:
        """Begin the call, if this can be the name of a tool."""
        name = loaded(text)
        if isinstance(name, str) and NAME.fullmatch(name) and self.known(name):
            self.buffer.begin_call(name)
            self.buffer.arguments("".join(self.waiting))
            self.begun = True
        return self.begun

    def arguments(self, text: str) -> None:
        self.has_arguments = True
        if self.begun:
            self.buffer.arguments(text)
        else:
            self.waiting.append(text)


@dataclass(frozen=True, slots=True)
class JsonReader:
    """Reads the calls of one reply."""

    cursor: TextCursor
    buffer: DeltaBuffer
    form: JsonForm
    tools: Mapping[str, Tool]
    ends: MarkSet = NO_MARKS  # marks that also end a call that is broken

    def section(self) -> Reader[None]:
        """The calls after an opening mark. What is not JSON is left to whoever reads text."""
        n_before = self.buffer.n_calls
        held = ""
        while True:
            first = yield from space(self.cursor, drop)
            if first == "{":
                yield from self.call(drop, lambda name: True)
                held = ""
            elif first and first in BETWEEN:
                held += yield from self.cursor.take(drop)
            else:  # a bracket may be the first character of a mark
                begins = held.rfind("[") if self.buffer.n_calls > n_before else 0
                return self.cursor.unread(held[begins:] if begins >= 0 else "")

    def bare(self) -> Reader[None]:
        """Calls without tags, where a reply begins. What is no call of a known tool is put back."""
        while True:
            held = HeldText(MAX_HELD_CHARS)
            try:
                is_call = yield from self._bare_call(held)
            except TooMuchHeld as error:
                is_call = False
                self.cursor.back(error.n_over)
            if not is_call:
                return self.cursor.unread((yield from self._no_call(held.text)))

    def _no_call(self, text: str) -> Reader[str]:
        """The text of an object that is no call. After calls, one that breaks off is dropped."""
        if not self.buffer.n_calls:
            return text
        text = text.lstrip(BETWEEN + WHITE)
        return text if (yield from self.cursor.peek()) else ""

    def _bare_call(self, held: HeldText) -> Reader[bool]:
        first = yield from space(self.cursor, held)
        while first and first in BETWEEN and (self.buffer.n_calls or first == "["):
            yield from self.cursor.take(held)
            first = yield from space(self.cursor, held)
        return first == "{" and (yield from self.call(held, self.tools.__contains__))

    def call(self, held: Sink, known: Callable[[str], bool]) -> Reader[bool]:
        """One object; whether it is a call. Its text goes to `held` until that is certain."""
        call = JsonCall(self.buffer, known, held)
        yield from self.cursor.take(held)
        while (yield from space(self.cursor, call.keep)) == '"':
            if not (yield from self._member(call)):
                return False
            if (yield from space(self.cursor, call.keep)) == ",":
                yield from self.cursor.take(call.keep)
        if not call.begun:
            yield from self._skip_rest(call)
            return False
        if (yield from self.cursor.peek()) and not call.has_arguments:
            self.buffer.arguments("{}")
        if (yield from self.cursor.peek()) == "}":
            yield from self.cursor.take(drop)
        self.buffer.end_call()
        return True

    def _skip_rest(self, call: JsonCall) -> Reader[None]:
        if (yield from self.cursor.peek()) == "}":
            yield from self.cursor.take(call.keep)

    def _member(self, call: JsonCall) -> Reader[bool]:
        """A key and its value; False if the object cannot be a call."""
        key: list[str] = []
        if not (yield from string(self.cursor, tee(key.append, call.keep), self.ends)):
            return call.begun
        key_text = "".join(key)
        name = loaded(key_text)
        if not call.may_begin_with(name):
            return False
        if (yield from space(self.cursor, call.keep)) == ":":
            yield from self.cursor.take(call.keep)
        yield from space(self.cursor, call.keep)
        if self.form.is_keyed and not call.begun:
            return call.name(key_text) and (yield from self._arguments(call))
        if name in self.form.names and not call.begun:
            return (yield from self._name(call))
        if name in self.form.arguments and not call.has_arguments:
            return (yield from self._arguments(call))
        yield from value(self.cursor, call.keep, self.ends)
        return True

    def _name(self, call: JsonCall) -> Reader[bool]:
        """The name of the tool, or an inner object whose members are the call's."""
        if (yield from self.cursor.peek()) == "{":
            yield from self.cursor.take(call.keep)
            return True
        text: list[str] = []
        yield from value(self.cursor, tee(text.append, call.keep), self.ends)
        return call.name("".join(text))

    def _arguments(self, call: JsonCall) -> Reader[bool]:
        """The arguments as the model writes them. A string holds the JSON of the arguments, encoded twice."""
        if (yield from self.cursor.peek()) == "{":
            yield from value(self.cursor, tee(call.arguments, call.keep), self.ends)
            return True
        pieces: list[str] = []
        yield from value(self.cursor, tee(pieces.append, call.keep), self.ends)
        text = "".join(pieces)
        inner = loaded(text)
        if (yield from self.cursor.peek()) or inner is not INVALID:  # an invalid end may be that of the reply
            call.arguments("{}" if inner is None else inner if isinstance(inner, str) else text)
        return True


def tee(first: Sink, second: Sink) -> Sink:
    """A sink that passes text on to two."""

    def both(piece: str) -> None:
        first(piece)
        second(piece)

    return both
