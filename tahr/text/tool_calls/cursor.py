"""Text that arrives in pieces, read from front to back by generators that wait where a piece ends.

Every reader takes each character once and passes it on or drops it, so reading takes linear time; the cursor holds back
no more than what may still become a mark.
"""

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reader = Generator[None, None, T]  # a yield asks for more text
Sink = Callable[[str], object]

MAX_HEAD_CHARS = 512  # limit on the text before a mark that tells the kind of a block
SEARCHED_CHARS = 4096  # limit on one search for marks: readers may give up after it, and others search there again


class MarkSet:
    """Texts to look for: the one that begins first, of several the longest."""

    def __init__(self, marks: Iterable[str]):
        self.marks = tuple(dict.fromkeys(marks))
        assert all(self.marks), self.marks
        self.pattern = re.compile("|".join(map(re.escape, sorted(self.marks, key=len, reverse=True))) or "(?!)")
        self._begins = frozenset(mark[:n] for mark in self.marks for n in range(1, len(mark)))
        self._longest = max(map(len, self._begins), default=0)

    def found(self, text: str, at: int, ended: bool) -> tuple[int, int]:
        """Where in the text, from `at` on, the first mark begins and ends.

        Where none is whole, or may be part of one that more text completes, both are where that one may begin.
        """
        found = self.pattern.search(text, at)
        if ended or (found and found.start() < len(text) - self._longest):
            return found.span() if found else (len(text), len(text))
        opens = len(text) - self._n_open(text, at)
        return found.span() if found and found.start() < opens else (opens, opens)

    def _n_open(self, text: str, at: int) -> int:
        """Length of the longest end of the text, from `at` on, that begins a mark."""
        most = min(self._longest, len(text) - at)
        return next((n for n in range(most, 0, -1) if text[-n:] in self._begins), 0)


@lru_cache(maxsize=256)
def mark_set(*marks: str) -> MarkSet:
    """Make a set of marks; many requests share it."""
    return MarkSet(marks)


class TextCursor:
    """A position in text that is still growing."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False

    def feed(self, text: str) -> None:
        """Add text; what has been read is forgotten."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """No more text comes: readers get to see the end."""
        self._ended = True

    def peek(self) -> Reader[str]:
        """The next character, not taken; empty at the end."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def take(self, sink: Sink) -> Reader[str]:
        """Take the next character; empty at the end."""
        character = yield from self.peek()
        if character:
            self._at += 1
            sink(character)
        return character

    def until(self, marks: MarkSet, sink: Sink) -> Reader[str]:
        """Pass on the text before the first of the marks, as soon as it is known, and take the mark.

        The mark is returned and not passed on; without one, all text is passed on and "" returned.
        """
        while True:
            at = self._at
            searched = self._text[at : at + SEARCHED_CHARS]
            is_rest = at + SEARCHED_CHARS >= len(self._text)
            begin, end = marks.found(searched, 0, self._ended and is_rest)
            self._pass_on(at + begin, sink)
            if end > begin:
                self._at = at + end
                return searched[begin:end]
            if is_rest and self._ended:
                return ""
            if is_rest:
                yield

    def ahead(self, n: int) -> Reader[str]:
        """The next characters, not taken: fewer than `n` only at the end."""
        while len(self._text) - self._at < n and not self._ended:
            yield
        return self._text[self._at : self._at + n]

    def before(self, pattern: re.Pattern[str], sink: Sink) -> Reader[str]:
        """Pass on the text before the first character that matches; that one is returned and not taken."""
        while True:
            found = pattern.search(self._text, self._at)
            self._pass_on(found.start() if found else len(self._text), sink)
            if found or self._ended:
                return found[0] if found else ""
            yield

    def back(self, n: int) -> None:
        """Return the last characters that a sink was given and did not take."""
        self._at -= n

    def unread(self, text: str) -> None:
        """Put back text that turned out to be something else than was expected."""
        if self._text.endswith(text, 0, self._at):  # nearly always; what follows may be long, and copying it is slow
            self._at -= len(text)
        else:
            self._text = text + self._text[self._at :]
            self._at = 0

    def _pass_on(self, end: int, sink: Sink) -> None:
        if end > self._at:
            begin = self._at
            self._at = end
            sink(self._text[begin:end])


class TooMuchHeld(Exception):
    """Text was held back for longer than anything it may become is worth."""

    def __init__(self, n_over: int):
        super().__init__()
        self.n_over = n_over  # characters that were not kept


class HeldText:
    """A sink that keeps text until it is known what it is, and raises where that takes too long."""

    def __init__(self, limit: int):
        self._pieces: list[str] = []
        self._left = limit

    def __call__(self, piece: str) -> None:
        self._pieces.append(piece[: self._left])
        self._left -= len(piece)
        if self._left < 0:
            raise TooMuchHeld(-self._left)

    @property
    def text(self) -> str:
        return "".join(self._pieces)


def head_of(cursor: TextCursor, *ends: str) -> Reader[tuple[str, str]]:
    """The mark that ends a head, and the text before it; no mark where the text is too long."""
    held = HeldText(MAX_HEAD_CHARS)
    try:
        mark = yield from cursor.until(mark_set(*ends), held)
    except TooMuchHeld as error:
        mark = ""
        cursor.back(error.n_over)
    return mark, held.text


def drop(text: str) -> None:
    """A sink for text that nobody needs."""
