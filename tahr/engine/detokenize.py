"""From picked tokens to what a user may see."""

from collections.abc import Iterable
from typing import Protocol

from tahr.text.deltas import Deltas
from tahr.text.stream import StopMatcher
from tahr.text.tokenizer import Tokenizer


class Writer(Protocol):
    """Takes tokens, gives deltas; `stopped` once a stop string has been found."""

    def push(self, token: int) -> Deltas: ...
    def flush(self) -> Deltas: ...
    @property
    def stopped(self) -> bool: ...


def has_text(tokenizer: Tokenizer, tokens: Iterable[int]) -> bool:
    """Whether any of these tokens stands for text, so that what follows continues one."""
    return not all(map(tokenizer.is_special, tokens))


class TextWriter:
    """Whole characters only, stop strings cut off, and never a piece that may still turn into a stop string."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...], continuing: bool = False):
        self._detokenizer = tokenizer.detokenizer(continuing=continuing)
        self._matcher = StopMatcher(stops)
        self._has_stops = bool(stops)

    @property
    def stopped(self) -> bool:
        return self._matcher.hit is not None

    def push(self, token: int) -> Deltas:
        text = self._detokenizer.push(token)
        if self._has_stops:
            text = self._matcher.push(text)
        return (text,) if text else ()

    def flush(self) -> Deltas:
        """What was held back, now that no more tokens come."""
        text = self._matcher.push(self._detokenizer.flush()) + self._matcher.flush()
        return (text,) if text else ()
