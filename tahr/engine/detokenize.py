"""From picked tokens to text a user may see."""

from collections.abc import Iterable
from typing import Protocol

from tahr.text.stream import StopMatcher
from tahr.text.tokenizer import Tokenizer


class Writer(Protocol):
    """Takes tokens, gives text; `stopped` once a stop string has been met."""

    def push(self, token: int) -> str: ...
    def flush(self) -> str: ...
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
        self._watches = bool(stops)

    @property
    def stopped(self) -> bool:
        return self._matcher.hit is not None

    def push(self, token: int) -> str:
        text = self._detokenizer.push(token)
        return self._matcher.push(text) if self._watches else text

    def flush(self) -> str:
        """What was held back, now that nothing more comes."""
        return self._matcher.push(self._detokenizer.flush()) + self._matcher.flush()
