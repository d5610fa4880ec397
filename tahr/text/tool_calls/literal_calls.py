"""Calls whose arguments are written in a notation of their own: Gemma's objects and Python's keyword arguments."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tahr.text.tool_calls.cursor import MAX_HEAD_CHARS, MarkSet, Reader, Sink, TextCursor, drop, head_of, mark_set
from tahr.text.tool_calls.delta_buffer import DeltaBuffer
from tahr.text.tool_calls.json_text import (
    INVALID,
    PYTHON_WORDS,
    dumped,
    escaped,
    is_broken,
    json_of_python,
    loaded,
    space,
    string_rest,
)
from tahr.text.tool_calls.tools import NAME, Tool

GEMMA_QUOTE = '<|"|>'
WORD_END = re.compile(r'[<",:{}\[\]]')
KEY_END = re.compile(r"[<,:{}]")  # names of arguments may have brackets
BARE_KEY = re.compile(r'[^<",:{}\[\]\s](?:[^<,:{}]*[^<,:{}\s])?')  # a key without quotes
IN_CALL = ("(", ")", "[", "]", "{", "}", ",", "'", '"')
MAX_AHEAD = 128  # characters after a quote, which show whether it ends a text
AFTER_STRING = re.compile(r"\s*(?:[,)\]}:]|\Z)")
# The same where a text is all of an argument: the next argument, the next call, or nothing more.
AFTER_TEXT = re.compile(r"""\s*(?:\Z|,\s*[^,=()'"\s]+\s*=(?!=)|\)\s*(?:\Z|[\];\n<]|,\s*[\w.]+\s*\())""")
REST_OF_PYTHON = {quote: re.compile(rf"(?s:.*?){quote}\s*(?=[,)\]}}:])") for quote in "'\""}
BARE_LIST = re.compile(r"\[\s*([A-Za-z0-9_.:/-]+)\s*\(")  # short enough for what is looked at
ARGUMENT_KEY = re.compile(r"""[^,=()'"]+=\s*""")
CODE_TOOLS = ("code_interpreter", "python", "ipython")  # names of tools that take code


@dataclass(frozen=True, slots=True)
class GemmaForm:
    """`call:name{key:value}`, texts between quotes that are one token."""

    quote: str = GEMMA_QUOTE


@dataclass(frozen=True, slots=True)
class PythonForm:
    """`[name(key=value), ...]`, or `name.call(key=value)`."""

    begin: str = "["
    separator: str = ", "
    end: str = "]"


@dataclass(frozen=True, slots=True)
class GemmaReader:
    """Reads one call after its opening mark and turns its arguments into JSON as they come."""

    cursor: TextCursor
    buffer: DeltaBuffer
    form: GemmaForm

    def section(self, ends: MarkSet) -> Reader[None]:
        """A name and an object. A name that is none is put back."""
        mark, head = yield from head_of(self.cursor, "{")
        name = head.strip().removeprefix("call:").strip()
        if not mark or not NAME.fullmatch(name):
            return self.cursor.unread(head + mark) if mark or (yield from self.cursor.peek()) else None
        self.buffer.begin_call(name)
        yield from self._object(ends)
        self.buffer.end_call()

    def _object(self, ends: MarkSet) -> Reader[None]:
        """Everything up to the brace that closes the arguments, or one of the marks before it.

        `nested` has an entry for each open container.
        """
        self.buffer.arguments("{")
        nested = ["}"]
        at_key = True
        while nested and (character := (yield from space(self.cursor, drop))):
            if character == "<":
                if not (yield from self._quoted(ends)):
                    return
                continue
            if character not in "{}[],:":
                yield from self._word(at_key)
                continue
            yield from self.cursor.take(drop)
            if character in "{[":
                nested.append("}" if character == "{" else "]")
            elif character in "}]":
                character = nested.pop()
            at_key = nested[-1:] == ["}"] and character in "{,"
            self.buffer.arguments(character)

    def _word(self, at_key: bool) -> Reader[None]:
        """A bare word: a key, a number, true, false or null; or a text in JSON's quotes."""
        if (yield from self.cursor.peek()) == '"':
            yield from self.cursor.take(self.buffer.arguments)
            yield from string_rest(self.cursor, self.buffer.arguments)
            return
        pieces: list[str] = []
        if (yield from self.cursor.before(KEY_END if at_key else WORD_END, pieces.append)):
            word = "".join(pieces).strip()
            plain = PYTHON_WORDS.get(word, word)  # the template writes null as None
            self.buffer.arguments(plain if not at_key and loaded(plain) is not INVALID else dumped(word))

    def _quoted(self, ends: MarkSet) -> Reader[bool]:
        """A text between quotes; False if the call is over instead."""
        quote = self.form.quote
        marks = mark_set(quote, *ends.marks)
        mark = yield from self.cursor.until(marks, drop)
        if mark != quote:
            self.cursor.unread(mark)
            return not mark
        self.buffer.arguments('"')
        while (mark := (yield from self.cursor.until(marks, self._text))) not in ("", quote):
            if (yield from is_broken(self.cursor, re.compile(rf"(?s:.*?){re.escape(quote)}\s*"))):
                self.cursor.unread(mark)
                return False
            self._text(mark)
            marks = mark_set(quote)
        self.buffer.arguments('"' if mark else "")
        return True

    def _text(self, piece: str) -> None:
        self.buffer.arguments(escaped(piece))


@dataclass(frozen=True, slots=True)
class PythonReader:
    """Reads calls in Python's notation; each argument is passed on when it is complete."""

    cursor: TextCursor
    buffer: DeltaBuffer
    tools: Mapping[str, Tool]
    ends: MarkSet  # marks that also end a call that is broken
    takes_code: bool = False

    def section(self, closes: MarkSet) -> Reader[None]:
        """Calls up to the closing mark; anything else is text, or code for a tool that takes code."""
        while (first := (yield from self._next())) and first != "<":
            no_call = yield from self._call()
            if no_call:
                return (yield from self._code(no_call, closes))
        return None

    def bare(self) -> Reader[None]:
        """Calls without marks, if what follows is a list that begins with a known tool."""
        found = BARE_LIST.match((yield from self.cursor.ahead(MAX_AHEAD)))
        if found and found[1] in self.tools:
            yield from self.section(self.ends)

    def _next(self) -> Reader[str]:
        """The first character of the next call."""
        while (first := (yield from space(self.cursor, drop))) and first in "[],;":
            yield from self.cursor.take(drop)
        return first

    def _call(self) -> Reader[str]:
        """One call; if it is none, the text that was read."""
        mark, head = yield from head_of(self.cursor, "(", "\n")
        name = head.strip().removesuffix(".call")
        if mark != "(" or not NAME.fullmatch(name) or name not in self.tools:
            return head + mark
        self.buffer.begin_call(name)
        yield from self._arguments(self.tools.get(name))
        self.buffer.end_call()
        return ""

    def _arguments(self, tool: Tool | None) -> Reader[None]:
        names = list((tool.parameters.get("properties") or {}) if tool else ())
        self.buffer.arguments("{")
        n_arguments = 0
        mark = ","
        while mark == ",":
            argument = HeldArgument()
            mark = yield from self._argument(argument)
            text = argument.text.strip()
            if text and mark:
                key = names[n_arguments] if n_arguments < len(names) else f"arg{n_arguments}"
                self.buffer.arguments((", " if n_arguments else "") + keyword(text, key, names))
                n_arguments += 1
        if mark:
            self.buffer.arguments("}")

    def _argument(self, argument: "HeldArgument") -> Reader[str]:
        """One argument; the comma or parenthesis after it, which is taken."""
        depth = 0
        marks = mark_set(*IN_CALL, *self.ends.marks)
        while (mark := (yield from self.cursor.until(marks, argument))) in IN_CALL:
            if depth == 0 and mark in ",)":
                return mark
            after = AFTER_TEXT if depth == 0 and argument.is_key else AFTER_STRING
            argument(mark)
            if mark not in "'\"":
                depth += 1 if mark in "([{" else -1 if mark in ")]}" else 0
            elif not (yield from python_string_rest(self.cursor, mark, argument, self.ends, after)):
                return ""
        self.cursor.unread(mark)
        return ""

    def _code(self, begun: str, closes: MarkSet) -> Reader[None]:
        tool = next((name for name in CODE_TOOLS if name in self.tools), None)
        if tool is None or not self.takes_code:
            return self.cursor.unread(begun)
        self.buffer.begin_call(tool)
        self.buffer.arguments('{"code": "' + escaped(begun))
        yield from self.cursor.until(closes, lambda piece: self.buffer.arguments(escaped(piece)))
        self.buffer.arguments('"}')
        return self.buffer.end_call()


class HeldArgument:
    """A sink for the text of an argument."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._n_chars = 0

    def __call__(self, piece: str) -> None:
        self._pieces.append(piece)
        self._n_chars += len(piece)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def is_key(self) -> bool:
        """Whether it is a key so far."""
        return self._n_chars <= MAX_HEAD_CHARS and ARGUMENT_KEY.fullmatch(self.text) is not None


def python_string_rest(
    cursor: TextCursor, quote: str, sink: Sink, ends: MarkSet, after: re.Pattern[str]
) -> Reader[bool]:
    """The rest of a string. Templates escape nothing, so a quote after which no value can end is an apostrophe.

    False: it was never closed before a mark, which is not taken.
    """
    marks = mark_set(quote, "\\", *ends.marks)
    while mark := (yield from cursor.until(marks, sink)):
        if mark == quote:
            sink(mark)
            if after.match((yield from cursor.ahead(MAX_AHEAD))):
                return True
        elif mark == "\\":
            sink(mark)
            yield from cursor.take(sink)
        elif (yield from is_broken(cursor, REST_OF_PYTHON[quote])):
            cursor.unread(mark)
            return False
        else:
            sink(mark)
            marks = mark_set(quote, "\\")
    return True


def keyword(text: str, name: str, names: Sequence[str] = ()) -> str:
    """`key=value` as a member of a JSON object; a value without a key gets the name that belongs to its place.

    A key is a word of Python, or any of the `names` that the tool knows.
    """
    known = "".join(f"{re.escape(each)}|" for each in names if text.startswith(each))
    found = re.match(rf"\s*({known}[A-Za-z_]\w*)\s*=(?!=)", text)
    key, value = (found[1], text[found.end() :]) if found else (name, text)
    text = value.strip()
    plain = loaded(text)  # true, false and null are JSON's words
    return f"{dumped(key)}: {json_of_python(text) or (dumped(text) if plain is INVALID else text)}"
