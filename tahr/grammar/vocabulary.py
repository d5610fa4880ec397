"""A model's vocabulary as llguidance reads it: the bytes of every token, and text to tokens for what is forced."""

from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tahr.errors import GrammarError
from tahr.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

Words = NDArray[np.uint32]

# Tokens inside strings are looked up in sets of tokens that fit a whole class of strings at once: one set per length,
# so that a bounded string finds one near its end too.
STRING = r'[^"\\\x00-\x1F\x7F]'
SLICES = [r"[\x20\x0A\x0D\x09]+", *(f"{STRING}{{1,{n}}}" for n in (3, 5, 8, 12, 20, 30)), STRING + "+"]
MAX_KNOWN, MAX_KNOWN_LETTERS = 4096, 256  # texts whose tokens are remembered, and how long they may be
MARKER = b"\xff"  # llguidance's sign of a special token; no text has this byte


class TokenTable:
    """What llguidance asks of a tokenizer. It must not refer to the index, or neither would ever be freed."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_ids)
        # The same few keys and signs are forced again and again.
        self._known = lru_cache(maxsize=MAX_KNOWN)(partial(continuation, tokenizer))

    @property
    def tokens(self) -> list[bytes]:
        """The bytes of each token; none for ids that no token has."""
        known = self._tokenizer
        texts = [known.token_bytes(i) if known.piece(i) else b"" for i in range(known.n_vocab)]
        return [b"" if text.startswith(MARKER) else text for text in texts]

    @property
    def special_token_ids(self) -> list[int]:
        return [i for i in range(self._tokenizer.n_vocab) if self._tokenizer.is_special(i)]

    def __call__(self, text: str) -> list[int]:
        """Tokens with exactly the bytes of a text that continues another one; none if the tokenizer has no such."""
        return list(self._known(text)) if len(text) <= MAX_KNOWN_LETTERS else continuation(self._tokenizer, text)


def continuation(tokenizer: Tokenizer, text: str) -> list[int]:
    """What `TokenTable` answers for a text."""

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
        self._table = TokenTable(tokenizer)

    @cached_property
    def index(self) -> "LLTokenizer":
        from llguidance import LLTokenizer

        return LLTokenizer(self._table, eos_token=self.eos_ids, slices=SLICES)  # type: ignore[arg-type]

    @cached_property
    def all_but_ends(self) -> Words:
        """The mask of a sequence whose grammar has not begun: it may not end before."""
        allowed = np.ones(32 * self.n_words, bool)
        allowed[self.eos_ids] = False
        return np.packbits(allowed, bitorder="little").view("<u4").astype(np.uint32)
