"""Calls whose arguments are written in a notation of their own: Gemma's objects and Python's keyword arguments."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tahr.text.tool_calls.cursor import MarkSet, Reader, Sink, TextCursor, drop, head_of, mark_set
from tahr.text.tool_calls.delta_buffer import DeltaBuffer
from tahr.text.tool_calls.json_text import (
    INVALID,
    PYTHON_WORDS,
    dumped,
    escaped,
    json_of_python,
    loaded,
    space,
    string_rest,
)
from tahr.text.tool_calls.tools import NAME, Tool

GEMMA_QUOTE = '<|"|>'
WORD_END = re.compile(r'[<",:{}\[\]]')
KEY_END = re.compile(r"[<,:{}]")  # names of arguments may have brackets
BARE_KEY = re.compile(r'[^<",:{}\[\]\s](?:[^<,:{}]*[^<,:{}\s])?')  # one that needs no quotes
IN_CALL = mark_set("(", ")", "[", "]", "{", "}", ",", "'", '"')
AFTER_STRING = ("", *",)]}:")
CODE_TOOLS = ("code_interpreter", "python", "ipython")  # what a tool is called that takes code


@dataclass(frozen=True, slots=True)
class GemmaForm:
    """`call:name{key:value}`, texts between quotes that are one token."""


@dataclass(frozen=True, slots=True)
class PythonForm:
    """`[name(key=value), ...]`, or `name.call(key=value)`."""


@dataclass(frozen=True, slots=True)
class GemmaReader:
    """Reads one call after its opening mark and turns its arguments into JSON as they come."""

    cursor: TextCursor
    buffer: DeltaBuffer

    def section(self, closes: MarkSet) -> Reader[None]:
        """A name and an object. A name that is none is put back."""
        mark, head = yield from head_of(self.cursor, "{")
        name = head.strip().removeprefix("call:").strip()
        if not mark or not NAME.fullmatch(name):
            return self.cursor.unread(head + mark) if mark or (yield from self.cursor.peek()) else None
        self.buffer.begin_call(name)
        yield from self._object(closes)
        self.buffer.end_call()

    def _object(self, closes: MarkSet) -> Reader[None]:
        """Everything up to the brace that closes the arguments, or a mark that closes the call before.

        `nested` has an entry for each open container.
        """
        self.buffer.arguments("{")
        nested = ["}"]
        at_key = True
        while nested and (character := (yield from space(self.cursor, drop))):
            if character == "<":
                if not (yield from self._quoted(closes)):
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
            return (yield from string_rest(self.cursor, self.buffer.arguments))
        pieces: list[str] = []
        if (yield from self.cursor.before(KEY_END if at_key else WORD_END, pieces.append)):
            word = "".join(pieces).strip()
            plain = PYTHON_WORDS.get(word, word)  # the template writes null as None
            self.buffer.arguments(plain if not at_key and loaded(plain) is not INVALID else dumped(word))
        return None

    def _quoted(self, closes: MarkSet) -> Reader[bool]:
        """A text between quotes; False if the call is closed instead."""
        mark = yield from self.cursor.until(mark_set(GEMMA_QUOTE, *closes.marks), drop)
        if mark != GEMMA_QUOTE:
            return not mark
        self.buffer.arguments('"')
        ends = mark_set(GEMMA_QUOTE)
        if (yield from self.cursor.until(ends, lambda piece: self.buffer.arguments(escaped(piece)))):
            self.buffer.arguments('"')
        return True


@dataclass(frozen=True, slots=True)
class PythonReader:
    """Reads calls in Python's notation; each argument is passed on when it is complete."""

    cursor: TextCursor
    buffer: DeltaBuffer
    tools: Mapping[str, Tool]
    takes_code: bool = False

    def section(self, closes: MarkSet) -> Reader[None]:
        """Calls up to the closing mark; anything else is text, or code for a tool that takes code."""
        while (first := (yield from self._next())) and first != "<":
            no_call = yield from self._call()
            if no_call:
                return (yield from self._code(no_call, closes))
        return None

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
            pieces: list[str] = []
            mark = yield from self._argument(pieces.append)
            text = "".join(pieces).strip()
            if text and mark:
                key = names[n_arguments] if n_arguments < len(names) else f"arg{n_arguments}"
                self.buffer.arguments((", " if n_arguments else "") + keyword(text, key, names))
                n_arguments += 1
        if mark:
            self.buffer.arguments("}")

    def _argument(self, sink: Sink) -> Reader[str]:
        """One argument; the comma or parenthesis after it, which is taken."""
        depth = 0
        while mark := (yield from self.cursor.until(IN_CALL, sink)):
            if mark in "'\"":
                sink(mark)
                yield from python_string_rest(self.cursor, mark, sink)
                continue
            if depth == 0 and mark in ",)":
                return mark
            sink(mark)
            depth += 1 if mark in "([{" else -1 if mark in ")]}" else 0
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


def python_string_rest(cursor: TextCursor, quote: str, sink: Sink) -> Reader[None]:
    """The rest of a string. Templates escape nothing, so a quote after which no value can end is an apostrophe."""
    marks = mark_set(quote, "\\")
    while mark := (yield from cursor.until(marks, sink)):
        sink(mark)
        if mark == "\\":
            yield from cursor.take(sink)
        elif (yield from space(cursor, sink)) in AFTER_STRING:
            return


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
