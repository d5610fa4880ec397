"""Reads GBNF: rules of alternatives, sequences, character classes, repetitions and groups."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tahr.errors import GrammarError

MAX_DEPTH = 50  # groups in groups
MAX_REPEAT = 100_000
MAX_REPEATED = 2  # repetitions of a repetition, without a group between them
UNBOUNDED = -1

NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]*")
SPACE = re.compile(r"(?:[ \t]|#[^\n]*)*")
SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
REPEAT = re.compile(r"\{[ \t]*([0-9]{1,9})[ \t]*(?:(,)[ \t]*([0-9]{1,9})?[ \t]*)?\}")
CHARACTER = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|([^\\])", re.DOTALL)
ESCAPES = {"n": "\n", "r": "\r", "t": "\t"} | {letter: letter for letter in "\\\"[]-^/'"}


@dataclass(frozen=True, slots=True)
class Class:
    """One character of some: as an expression, and as ranges of code points in order."""

    regex: str
    ranges: "tuple[Range, ...]"
    parts: ClassVar[tuple["Node", ...]] = ()


@dataclass(frozen=True, slots=True)
class Reference:
    """The text of another rule."""

    name: str
    parts: ClassVar[tuple["Node", ...]] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """One after the other."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Any one of some nodes."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A node several times in a row."""

    parts: tuple["Node"]
    least: int
    most: int


Node = Class | Reference | Series | Alternatives | Repeat
Range = tuple[int, int]  # code points, both ends included
LAST_CHARACTER = 0x10FFFF
ANY = Class(r"[\s\S]", ((0, LAST_CHARACTER),))


def nodes_in(node: Node) -> Iterator[Node]:
    """The node and all nodes in it, without those of the rules it uses."""
    left = [node]
    while left:
        each = left.pop()
        left += each.parts
        yield each


def references(node: Node) -> set[str]:
    """The rules that a node uses."""
    return {each.name for each in nodes_in(node) if isinstance(each, Reference)}


def parse(source: str) -> dict[str, Node]:
    """The rules by name."""
    reader = Reader(source)
    rules: dict[str, Node] = {}
    reader.skip(SPACE_AND_LINES)
    while not reader.at_end:
        name = reader.take(NAME, "the name of a rule")[0]
        reader.skip(SPACE)
        reader.literal("::=")
        reader.skip(SPACE_AND_LINES)
        if name in rules:
            raise GrammarError(f"The GBNF rule {name} is defined twice: remove one.")
        rules[name] = alternatives(reader, 0)
        reader.skip(SPACE_AND_LINES)
    return rules


class Reader:
    """A text and where its reader stands."""

    def __init__(self, text: str):
        self.text = text
        self.at = 0
        self.letters: dict[str, Class] = {}  # one object for each letter of all quoted texts

    @property
    def at_end(self) -> bool:
        return self.at >= len(self.text)

    @property
    def next(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def take(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = self.match(pattern)
        if found is None:
            raise self.error(f"{what} is missing")
        return found

    def literal(self, text: str) -> None:
        if not self.text.startswith(text, self.at):
            raise self.error(f"{text} is missing")
        self.at += len(text)

    def error(self, what: str) -> GrammarError:
        line = self.text.count("\n", 0, self.at) + 1
        rest = self.text[self.at : self.at + 30].split("\n")[0]
        return GrammarError(f"The GBNF grammar is wrong in line {line}: {what} before {rest!r}.")


def alternatives(reader: Reader, depth: int) -> Node:
    """Sequences, with | between them, up to the end of a group or a rule."""
    if depth > MAX_DEPTH:
        raise reader.error(f"groups are nested more than {MAX_DEPTH} deep")
    found = [series(reader, depth)]
    while reader.next == "|":
        reader.at += 1
        reader.skip(SPACE_AND_LINES)
        found.append(series(reader, depth))
    return found[0] if len(found) == 1 else Alternatives(tuple(found))


def series(reader: Reader, depth: int) -> Node:
    parts: list[Node] = []
    while True:
        skip_space(reader, depth)
        part = item(reader, depth)
        if part is None:
            return parts[0] if len(parts) == 1 else Series(tuple(parts))
        parts.append(repeated(reader, part))


def skip_space(reader: Reader, depth: int) -> None:
    """Line breaks count as space inside groups, and where the next line goes on with an alternative."""
    reader.skip(SPACE if not depth else SPACE_AND_LINES)
    before = reader.at
    reader.skip(SPACE_AND_LINES)
    if reader.next != "|":
        reader.at = before


def item(reader: Reader, depth: int) -> Node | None:
    """The next node of a sequence; None at its end."""
    if reader.next == '"':
        return quoted(reader)
    if reader.next == "[":
        return character_class(reader)
    if reader.next == ".":
        reader.at += 1
        return ANY
    if reader.next == "(":
        reader.at += 1
        reader.skip(SPACE_AND_LINES)
        inner = alternatives(reader, depth + 1)
        reader.literal(")")
        return inner
    name = reader.match(NAME)
    if name is None and reader.next not in ("", "|", ")", "\n", "\r"):
        raise reader.error("a character is out of place")
    return Reference(name[0]) if name else None


def repeated(reader: Reader, part: Node) -> Node:
    """A part with the repetitions written after it."""
    n_repeated = 0
    while True:
        reader.skip(SPACE)
        if reader.next and reader.next in "*+?":
            least, most = {"*": (0, UNBOUNDED), "+": (1, UNBOUNDED), "?": (0, 1)}[reader.next]
            reader.at += 1
        elif found := reader.match(REPEAT):
            least = int(found[1])
            most = int(found[3]) if found[3] else UNBOUNDED if found[2] else least
            if max(least, most) > MAX_REPEAT or (most != UNBOUNDED and most < least):
                raise reader.error(f"a repetition is not between 0 and {MAX_REPEAT} times, or ends before it begins")
        else:
            return part
        n_repeated += 1
        if n_repeated > MAX_REPEATED:
            raise reader.error(f"a part is repeated more than {MAX_REPEATED} times over")
        part = Repeat((part,), least, most)


def quoted(reader: Reader) -> Node:
    """A text in quotes: its characters, one after the other."""
    reader.at += 1
    found: list[Node] = []
    while reader.next != '"':
        letter = character(reader)
        if letter not in reader.letters:
            reader.letters[letter] = Class(escaped(letter), ((ord(letter), ord(letter)),))
        found.append(reader.letters[letter])
    reader.at += 1
    return found[0] if len(found) == 1 else Series(tuple(found))


def character_class(reader: Reader) -> Class:
    """Characters and ranges of them in brackets."""
    reader.at += 1
    begins = "["
    if reader.next == "^":
        reader.at += 1
        begins = "[^"
    found: list[str] = []
    ranges: list[Range] = []
    while reader.next != "]":
        first = last = character(reader)
        if reader.next == "-" and reader.text[reader.at + 1 : reader.at + 2] not in ("]", ""):
            reader.at += 1
            last = character(reader)
        if last < first:
            raise reader.error("a range of characters ends before it begins")
        found.append(escaped(first) if first == last else f"{escaped(first)}-{escaped(last)}")
        ranges.append((ord(first), ord(last)))
    reader.at += 1
    if not found:
        raise reader.error("a class of characters is empty")
    return Class(f"{begins}{''.join(found)}]", tuple(sorted(ranges)) if begins == "[" else all_but(ranges))


def all_but(ranges: list[Range]) -> tuple[Range, ...]:
    """The characters in none of the ranges."""
    found: list[Range] = []
    begin = 0
    for first, last in sorted(ranges):
        if first > begin:
            found.append((begin, first - 1))
        begin = max(begin, last + 1)
    return (*found, (begin, LAST_CHARACTER)) if begin <= LAST_CHARACTER else tuple(found)


def character(reader: Reader) -> str:
    """One character, which may be written as an escape."""
    found = reader.take(CHARACTER, "the rest of a text or a class")
    if code := found[1] or found[2] or found[3]:
        if int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) < 0xE000:
            raise reader.error(f"{code} is the number of no character")
        return chr(int(code, 16))
    if found[4]:
        if found[4] not in ESCAPES:
            raise reader.error(f"\\{found[4]} is no escape")
        return ESCAPES[found[4]]
    return found[5]


def escaped(character: str) -> str:
    """A character in a regular expression."""
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}"
