"""Finds the names of special tokens in texts, in a time that hardly depends on how many a vocabulary has."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from tahr.errors import TokenizerError
from tahr.text.tokens.cancellation import check_cancelled
from tahr.text.tokens.long_text import LONG

MAX_NAME = 256  # letters
MOST_STARTS = 64  # first letters that are looked for together with the second ones


class SpecialNames:
    """Names in the order of the alphabet, each with the lengths of those that it begins with, itself among them.

    All names that a text begins with are beginnings of the last name that is not behind it, so that the longest is
    known by how many letters this one and the text have in common: no search goes from name to name.
    """

    def __init__(self, ids: Mapping[str, int]):
        self._ids = ids
        self._names = sorted(ids)
        longest = max(self._names, key=len, default="")
        if len(longest) > MAX_NAME:
            raise TokenizerError(
                f"The special token {ids[longest]} has a name of {len(longest):,} letters, more than {MAX_NAME}: "
                "the tokenizer's file is damaged, download it again."
            )
        self._lengths = lengths(self._names)
        self._longest = len(longest)
        self._starts = starts(self._names)

    def id_of(self, name: str) -> int | None:
        """The token with that name; None: there is none."""
        return self._ids.get(name)

    def split(self, text: str) -> list[str | int]:
        """The text in parts: special tokens by their ids, and what stands between them."""
        parts: list[str | int] = []
        end = 0
        for begin, stop, token in self.find(text):
            parts += [text[end:begin], token]
            end = stop
        return [part for part in (*parts, text[end:]) if part != ""]

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """The names in a text one after the other, of several at one place the longest: begin, end and token."""
        at = 0
        n_checked = 0
        while at < len(text):
            if at >= n_checked:
                check_cancelled()
                n_checked = at + LONG
            found = self._starts.search(text, at, at + LONG + 1)  # a part of the text: searching holds the GIL
            if found is None:
                at += LONG
            elif name := self._name_at(text, found.start()):
                yield found.start(), found.start() + len(name), self._ids[name]
                at = found.start() + len(name)
            else:
                at = found.start() + 1

    def _name_at(self, text: str, at: int) -> str:
        """The longest name with which the text goes on there; empty if there is none."""
        rest = text[at : at + self._longest]
        i = bisect_right(self._names, rest) - 1
        if i < 0 or rest.startswith(self._names[i]):
            return self._names[i] if i >= 0 else ""
        n_common = common(self._names[i], rest)
        return rest[: (self._lengths[i] & ((2 << n_common) - 1)).bit_length() - 1]


def lengths(names: Sequence[str]) -> list[int]:
    """For each of some sorted names, as bits, how long the names are that it begins with; bit 0 stands for none."""
    found: list[int] = []
    begun = [("", 1)]  # the names that the last one begins with, and itself
    for name in names:
        while not name.startswith(begun[-1][0]):
            begun.pop()
        bits = begun[-1][1] | 1 << len(name)
        begun.append((name, bits))
        found.append(bits)
    return found


def common(left: str, right: str) -> int:
    """How many letters two texts have in common at their beginnings."""
    low = 0
    high = min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if right.startswith(left[:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def starts(names: Sequence[str]) -> re.Pattern[str]:
    """Finds where a name may begin, by its first two letters; by the first alone where these are many."""
    second: dict[str, set[str]] = {}
    for name in names:
        second.setdefault(name[0], set()).add(name[1:2])
    if len(second) > MOST_STARTS:
        return re.compile(f"[{''.join(map(re.escape, second))}]")
    parts = [
        re.escape(first) + ("" if "" in others else f"[{''.join(map(re.escape, sorted(others)))}]")
        for first, others in sorted(second.items())
    ]
    return re.compile("|".join(parts) or "(?!)")
