"""Long texts without long calls: the tokenizer library and `re` hold the GIL while they work, which stops every stream.

Short texts take the shortest way. Longer ones are cut where no vocabulary's rules look across, and what cannot be cut
goes through the library's batch calls, which are slower but let other threads run. Between two parts the work may be
cancelled.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from tahr.text.tokens.cancellation import check_cancelled

LONG = 8192  # letters that take a few milliseconds in one call

# The library would start threads of its own for batches, and warn at every fork after that; ours hold one text each.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

MAX_REMEMBERED = 512  # letters
N_REMEMBERED = 1024  # stretches of text

Encoder = Callable[[str], Iterable[Sequence[int]]]  # the ids of a text, in parts where it is long

# Where a line break (a single one: rules look ahead in white space) or a space stands between words of plain letters.
_WORDS = re.compile(r"(?<=\S\n)(?=[A-Za-z])|(?<=[a-z])(?= [A-Za-z])")


def parts(text: str, between: re.Pattern[str] = _WORDS) -> Iterator[str]:
    """The text in parts of about `LONG` letters, cut where `between` matches; longer where it does not."""
    start = 0
    while len(text) - start > LONG:
        check_cancelled()
        cut = next_cut(text, start + LONG // 2, between)
        if cut is None:
            break
        yield text[start:cut]
        start = cut
    yield text[start:]


def next_cut(text: str, start: int, between: re.Pattern[str] = _WORDS) -> int | None:
    """Where a text can be cut from `start` on. One search of a text without such a place would be a long call itself,
    so it is looked for in windows.
    """
    windows = range(start, len(text), LONG)
    found = next(filter(None, (between.search(text, at, at + LONG) for at in windows)), None)
    return found.start() if found else None


def encoding(tokenizer: Any, text: str) -> Any:
    """The library's encoding of a text, without tokens at its ends."""
    if len(text) <= LONG:
        return tokenizer.encode(text, add_special_tokens=False)
    return tokenizer.encode_batch([text], add_special_tokens=False)[0]


def spans(found: Any) -> Iterator[tuple[int, int]]:
    """Where each token of an encoding begins and ends: one by one, because the list of all is one long call."""
    return map(found.token_to_chars, range(len(found)))


def ids_of(tokenizer: Any) -> Callable[[str], list[int]]:
    """The library's tokenizer as a function."""

    def encode(text: str) -> list[int]:
        if len(text) <= LONG:
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
            return ids
        return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    return encode


def remembered(encode: Callable[[str], Sequence[int]]) -> Callable[[str], Sequence[int]]:
    """Remember the encoding of short stretches, such as roles: a conversation repeats those of its last request."""
    known = lru_cache(maxsize=N_REMEMBERED)(lambda text: tuple(encode(text)))
    return lambda text: known(text) if len(text) <= MAX_REMEMBERED else encode(text)
