"""Text as it comes: tokens to whole characters, and characters up to a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from tahr.errors import ConfigError


class TokenBytes(Protocol):
    """What a detokenizer needs of a tokenizer."""

    @property
    def drops_first_space(self) -> bool: ...
    def is_special(self, token: int) -> bool: ...
    def token_bytes(self, token: int) -> bytes: ...


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
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._shown = shown  # special tokens that are text nevertheless
        self._drop_space = tokenizer.drops_first_space and not continuing
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters this token completes, which may be none."""
        if self._skip_special and self._tokenizer.is_special(token) and token not in self._shown:
            return ""
        data = self._tokenizer.token_bytes(token)
        if self._drop_space and data:
            self._drop_space = False
            data = data.removeprefix(b" ")
        return self._characters.decode(data)

    def flush(self) -> str:
        """What is left when no more tokens come: U+FFFD for a character that was never finished."""
        return self._characters.decode(b"", final=True)


class StopMatcher:
    """Lets text through up to the stop string that is complete first, wherever the pieces were cut."""

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ConfigError("A stop string is empty, which would stop every reply before it starts: remove it.")
        self._stops = tuple(stops)
        self.has_stops = bool(stops)
        self._held = ""
        self.hit: str | None = None

    def push(self, text: str) -> str:
        """The text that is safe to show: all but the longest end that may still become a stop string."""
        if self.hit is not None:
            return ""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.hit = min(found)
            self._held = ""
            return text[:at]
        keep = self._n_open(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back for a stop string that never came."""
        held, self._held = self._held, ""
        return held

    def _n_open(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        ends = range(min(longest, len(text)), 0, -1)
        return next((n for n in ends if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)
