"""A long text in parts that are spoken one after the other."""

import re

MOST_CHARACTERS = 400  # limit on a part: less than half a minute
# Ends of sentences, then of clauses, then words.
ENDS = (r"[.!?…]['\")\]]*\s+|[。！？]\s*|\n+", r"[,;:–—]\s+|[，；：、]", r"\s+")


def parts_of(text: str, most: int = MOST_CHARACTERS) -> list[str]:
    """The text in parts of at most so many characters, cut where that is heard least."""
    parts: list[str] = []
    rest = text.strip()
    while len(rest) > most:
        cut = cut_of(rest, most)
        parts.append(rest[:cut].strip())
        rest = rest[cut:].strip()
    return [part for part in [*parts, rest] if part]


def cut_of(text: str, most: int) -> int:
    """The last end of a sentence within the first characters, or of something smaller."""
    for ends in ENDS:
        found = [each.end() for each in re.finditer(ends, text[:most])]
        if found and found[-1] > most // 4:
            return found[-1]
    return most
