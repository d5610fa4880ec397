"""Tokens as words."""

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Decode = Callable[[Sequence[int]], str]
REPLACED = "\ufffd"  # stands for bytes that are no whole character
WITHOUT_SPACES = frozenset(("zh", "ja", "th", "lo", "my", "yue"))  # languages that put none between words
BEFORE = "\"'“¿([{-"  # punctuation that belongs to the word behind it
BEHIND = "\"'.。,，!！?？:：”)]}、"  # punctuation that belongs to the word before it


@dataclass(slots=True)
class TokenWord:
    """A word, and the tokens it is made of."""

    text: str
    tokens: list[int]


def words_of(tokens: Sequence[int], decode: Decode, language: str) -> list[TokenWord]:
    """Words as a language has them: between spaces, or character by character."""
    pieces = whole_characters(tokens, decode)
    return pieces if language in WITHOUT_SPACES else joined(pieces)


def whole_characters(tokens: Sequence[int], decode: Decode) -> list[TokenWord]:
    """The fewest tokens each that are whole characters."""
    whole = decode(tokens)
    found: list[TokenWord] = []
    n_characters = 0
    begin = 0
    for end in range(1, len(tokens) + 1):
        text = decode(tokens[begin:end])
        place = text.find(REPLACED)
        # The character itself may be one that stands for others.
        if place < 0 or whole[n_characters + place : n_characters + place + 1] == REPLACED or end == len(tokens):
            found.append(TokenWord(text, list(tokens[begin:end])))
            n_characters += len(text)
            begin = end
    return found


def joined(pieces: Sequence[TokenWord]) -> list[TokenWord]:
    """Words that begin at spaces and punctuation."""
    found: list[TokenWord] = []
    for piece in pieces:
        if found and not piece.text.startswith(" ") and piece.text.strip() not in string.punctuation:
            found[-1].text += piece.text
            found[-1].tokens += piece.tokens
        else:
            found.append(piece)
    return found
