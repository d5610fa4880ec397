"""A model's vocabulary as llguidance reads it: the bytes of every token, and text to tokens for what is forced."""

from collections.abc import Iterator
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tahr.errors import GrammarError
from tahr.text.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tahr import _native as native

Words = NDArray[np.uint32]

SPACE = r"[\x20\x0A\x0D\x09]+"
STRING = r'[^"\\\x00-\x1F\x7F%s]'  # a character of a JSON string
NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # no text has them


class TokenSet(NamedTuple):
    """Tokens of at most so many characters of a JSON string."""

    most: int
    within: "tuple[TokenSet, ...]" = ()  # smaller first


# llguidance allows the largest set that fits where a string stands and tries all other tokens one by one, in a trie for
# each set around it. A string that may have five more characters finds its set, and one trie has all longer tokens:
# beside it stands a set that holds it without being around it. So at most 102,500 nodes of Qwen's 324,552 are met,
# where a chain of sets met 185,884. A set takes 8 MB.
STRING_SETS = (
    TokenSet(5, (TokenSet(3), TokenSet(4))),
    TokenSet(
        24, (TokenSet(6), TokenSet(20, (TokenSet(7), TokenSet(16, (TokenSet(8), TokenSet(12, (TokenSet(10),)))))))
    ),
)


def slices() -> list[str]:
    """The sets of tokens that llguidance is to know, as patterns."""
    return [SPACE, *string_slices(STRING_SETS, "", iter(NONCHARACTERS)), STRING % "" + "+"]


def string_slices(sets: tuple[TokenSet, ...], without: str, unused: Iterator[str]) -> Iterator[str]:
    """Patterns of sets, in which the characters `without` are missing.

    A set that holds another one beside it is not around it in llguidance's eyes, because a character of its own is
    missing in it.
    """
    for i, each in enumerate(sets):
        missing = without + (next(unused) if i else "")
        yield f"{STRING % missing}{{1,{each.most}}}"
        yield from string_slices(each.within, missing, unused)


MARKER = b"\xff"  # llguidance's sign of a special token; no text has this byte


def token_texts(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes of each token, with llguidance's sign before those of special ones; none for ids that no token has."""
    return [token_text(tokenizer, token) for token in range(tokenizer.n_vocab)]


def token_text(tokenizer: Tokenizer, token: int) -> bytes:
    text = tokenizer.token_bytes(token) if tokenizer.piece(token) else b""
    text = b"" if text.startswith(MARKER) else text
    return MARKER + text if tokenizer.is_special(token) else text


def continuation(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokens with exactly the bytes of a text that continues another one; none if the tokenizer has no such."""

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False)

    wanted = text.encode()
    for ids in (encode(text), encode("\n" + text)[1:], encode("\n" + text)[2:]):
        if b"".join(map(tokenizer.token_bytes, ids)) == wanted:
            return ids
    return []


class GrammarVocabulary:
    """The index over a vocabulary that all grammars of a model share. It is built when the first grammar needs it."""

    def __init__(self, tokenizer: Tokenizer):
        if not tokenizer.eos_ids:
            raise GrammarError("The tokenizer names no end token, so that no grammar could end: use another model.")
        self.eos_ids = sorted(tokenizer.eos_ids)
        self.n_vocab = tokenizer.n_vocab
        self.n_words = -(-self.n_vocab // 32)
        self._tokenizer = tokenizer

    @cached_property
    def index(self) -> "native.GrammarIndex":
        """llguidance's own view of the tokens. It refers to the tokenizer, not to this, or neither would be freed."""
        from tahr import _native as native

        library = import_module("llguidance._lib").__file__
        tokens = token_texts(self._tokenizer)
        tokenize = partial(continuation, self._tokenizer)
        try:
            return native.GrammarIndex(str(library), tokens, self.eos_ids, slices(), tokenize)
        except RuntimeError as error:
            raise GrammarError(
                f"The installed llguidance cannot be used ({error}): pip install 'llguidance>=1.9,<2'."
            ) from error

    @cached_property
    def all_but_ends(self) -> Words:
        """The mask of a sequence whose grammar has not begun: it may not end before."""
        allowed = np.ones(32 * self.n_words, bool)
        allowed[self.eos_ids] = False
        return np.packbits(allowed, bitorder="little").view("<u4").astype(np.uint32)
