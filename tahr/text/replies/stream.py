"""Text as it comes: tokens to whole characters, and characters up to a stop string or a limit of lines."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from encodings.utf_8 import IncrementalDecoder
from time import perf_counter
from typing import Protocol

from tahr.errors import ConfigError


class TokenBytes(Protocol):
    """A detokenizer's view of a tokenizer."""

    @property
    def drops_first_space(self) -> bool: ...
    def is_special(self, token: int) -> bool: ...
    def token_bytes(self, token: int) -> bytes: ...


class WholeTexts(dict[int, str | None]):
    """The text of each token that is whole characters by itself; None for the others, and for special tokens.

    Filled as tokens are looked up; a tokenizer has one for all its detokenizers.
    """

    def __init__(self, tokenizer: TokenBytes) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str | None:
        text = None if self._tokenizer.is_special(token) else whole_text(self._tokenizer.token_bytes(token))
        self[token] = text
        return text


def whole_text(data: bytes) -> str | None:
    """Bytes as text, if they are whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


class Detokenizer:
    """Decodes one token at a time; everything it returned, joined, is what `Tokenizer.decode` returns.

    If text went before (`continuing`), the space in front of the first word is a space, not the mark of a beginning.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        *,
        skip_special: bool = True,
        continuing: bool = False,
        shown: frozenset[int] = frozenset(),
        texts: WholeTexts | None = None,  # the tokenizer's
    ) -> None:
        self._tokenizer = tokenizer
        self._texts = WholeTexts(tokenizer) if texts is None else texts
        self._skip_special = skip_special
        self._shown = shown  # special tokens that are text nevertheless
        self._drop_space = tokenizer.drops_first_space and not continuing
        self._characters = IncrementalDecoder("replace")

    def push(self, token: int) -> str:
        """The characters this token completes, which may be none."""
        text = self._texts[token]
        if text is not None and not (self._drop_space or self._characters.buffer):  # nearly always
            return text
        if self._skip_special and self._tokenizer.is_special(token) and token not in self._shown:
            return ""
        data = self._tokenizer.token_bytes(token)
        if self._drop_space and data:
            self._drop_space = False
            data = data.removeprefix(b" ")
        return self._characters.decode(data)

    def push_all(self, tokens: Sequence[int]) -> str:
        """The characters these tokens complete."""
        texts = list(map(self._texts.__getitem__, tokens))
        if None in texts or self._drop_space or self._characters.buffer:
            return "".join(map(self.push, tokens))
        return "".join(texts)  # type: ignore[arg-type]

    def flush(self) -> str:
        """Release the rest when no more tokens come: U+FFFD for a character that was never finished."""
        return self._characters.decode(b"", final=True)


class LineLimits:
    """Lets text through up to a line after the first that is indented by less than `n_indent` spaces or tabs (none: 0),
    or to the end of the line in which `max_s` seconds (0: any number) have passed since the first text.
    """

    def __init__(self, n_indent: int, max_s: float, clock: Callable[[], float] = perf_counter) -> None:
        self._n_indent = n_indent
        self._max_s = max_s
        self._clock = clock
        self._began: float | None = None
        self._indent: str | None = None  # indentation of a line that is still bare
        self.reached = False

    def push(self, text: str) -> str:
        """The text that is safe to show: all but an indentation that may still be too short."""
        if self._began is None:
            self._began = self._clock()
        shown: list[str] = []
        for i, part in enumerate(text.split("\n")):
            if i:
                self._end_line(shown)
            self._add(part, shown)
        return "".join(shown)

    def flush(self) -> str:
        """The indentation held back."""
        held = self._indent or ""
        self._indent = None
        return held

    def _end_line(self, shown: list[str]) -> None:
        self.reached = self.reached or self._indent is not None  # all of the line was too short an indentation
        if self.reached:
            return
        assert self._began is not None
        shown.append("\n")
        self.reached = 0 < self._max_s < self._clock() - self._began
        self._indent = "" if self._n_indent else None

    def _add(self, part: str, shown: list[str]) -> None:
        if self.reached:
            self._indent = None
            return
        line = (self._indent or "") + part
        if self._indent is not None:
            n_indent = len(line) - len(line.lstrip(" \t"))
            if n_indent == len(line) < self._n_indent:
                self._indent = line
                return
            self._indent = None
            self.reached = n_indent < self._n_indent
        shown.append("" if self.reached else line)


class StopMatcher:
    """Lets text through up to the stop string that is complete first, wherever the pieces were cut, or to a limit of
    its lines.
    """

    def __init__(self, stops: Sequence[str], lines: LineLimits | None = None) -> None:
        if not all(stops):
            raise ConfigError("A stop string is empty, which would stop every reply before it starts: remove it.")
        self._stops = tuple(stops)
        self._lines = lines
        self._in_order = sorted(stops)
        self.has_stops = bool(stops) or lines is not None
        self._held = ""
        self.has_ended = False  # true with one of these:
        self.hit: str | None = None
        self.is_cut = False  # a limit of lines was reached

    def push(self, text: str) -> str:
        """The text that is safe to show: all but the longest end that may still become a stop string."""
        if self.has_ended:
            return ""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, stop = min(found)
            self._held = ""
            shown = self._within(text[:at])
            self.hit = None if self.is_cut else stop
            self.has_ended = True
            return shown
        keep = self._n_open(text)
        self._held = text[len(text) - keep :]
        return self._within(text[: len(text) - keep])

    def flush(self) -> str:
        """The text held back for a stop string that never came."""
        held = self._held
        self._held = ""
        return self._within(held) + (self._lines.flush() if self._lines else "")

    def _within(self, text: str) -> str:
        if self._lines is None:
            return text
        shown = self._lines.push(text)
        self.is_cut = self.has_ended = self._lines.reached
        return shown

    def _n_open(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        ends = range(min(longest, len(text)), 0, -1)
        return next((n for n in ends if self._begins_one(text[-n:])), 0)

    def _begins_one(self, end: str) -> bool:
        """Whether a stop string begins so; such ones stand together, none of them before `end`."""
        at = bisect_left(self._in_order, end)
        return at < len(self._in_order) and self._in_order[at].startswith(end)
