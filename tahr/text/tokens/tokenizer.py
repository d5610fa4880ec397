"""Text to token ids and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tahr.errors import TokenizerError
from tahr.text.replies.stream import Detokenizer, WholeTexts
from tahr.text.tokens.long_text import LONG, next_cut
from tahr.text.tokens.special_names import SpecialNames
from tahr.text.tokens.vocab import LibraryErrors, Vocab, alias

N_CHARS_AT_FIRST = 8  # per token: more than most texts have
N_SPARE = 64  # tokens before a cut, which may be others there in vocabularies that join words
ENCODING = LibraryErrors("The tokenizer cannot encode this text")


class Tokenizer:
    """One model's tokenizer; decoding works on bytes, so it can go token by token."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._special_of_marks: dict[tuple[str, ...], frozenset[int]] = {}  # one entry per format of replies
        self._whole_texts = WholeTexts(self)
        self._special_ids = {name: i for i in vocab.special if (name := vocab.pieces[i])}
        self._special_names = SpecialNames(self._special_ids)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Make one from the metadata of a GGUF file (`tokenizer.ggml.*`)."""
        from tahr.text.tokens.gguf_vocab import read_gguf

        return cls(read_gguf(metadata))

    @classmethod
    def from_json(
        cls,
        data: bytes | str,
        *,
        config: Mapping[str, Any] | None = None,
        generation: Mapping[str, Any] | None = None,
    ) -> Tokenizer:
        """Make one from tokenizer.json, with the content of tokenizer_config.json and generation_config.json."""
        from tahr.text.tokens.json_vocab import read_json

        return cls(read_json(data, config or {}, generation or {}))

    @classmethod
    def from_dir(cls, path: Path) -> Tokenizer:
        """Make one from a directory in the Hugging Face layout."""
        from tahr.text.tokens.json_vocab import read_dir

        return cls(read_dir(path))

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True, most: int = sys.maxsize
    ) -> list[int]:
        """Token ids of a text; no further ones are looked for in a long text that has more than `most`.

        `add_special` opens and closes the text as the model was trained to see it; without `parse_special` the names of
        special tokens in the text are only text, so that a message cannot contain one.
        """
        encode = self._vocab.parsing if parse_special else self._vocab.plain
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError("The text holds half a surrogate pair, which is no character: remove it.") from error
        ids: list[int] = []
        with ENCODING:
            for part in encode(text):
                ids += part
                if len(ids) > most:
                    break
        return [*self._vocab.ends.prefix, *ids, *self._vocab.ends.suffix] if add_special else ids

    def beginning(self, text: str, n_tokens: int) -> str:
        """The part of a long text that its first `n_tokens` tokens need, or a little more; the rest stays unread."""
        size = max(LONG, N_CHARS_AT_FIRST * n_tokens)
        while len(text) > size and (cut := next_cut(text, size)) is not None:
            if len(self.encode(text[:cut], add_special=False)) >= n_tokens + N_SPARE:
                return text[:cut]
            size = 2 * cut
        return text

    def disguise(self, text: str) -> str:
        """The text with its special tokens under aliases, by which `encode` without `parse_special` knows them."""
        return self.swap_special(text, alias)

    def swap_special(self, text: str, new: Callable[[int], str]) -> str:
        """The text with something else for each name of a special token; of several at one place the longest counts."""
        out: list[str] = []
        end = 0
        for begin, stop, token in self._special_names.find(text):
            out += text[end:begin], new(token)
            end = stop
        return "".join([*out, text[end:]]) if out else text

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of these tokens; bytes that are no UTF-8 read as U+FFFD."""
        kept = [self.token_bytes(i) for i in ids if not (skip_special and self.is_special(i))]
        joined = b"".join(kept)
        return (joined.removeprefix(b" ") if self.drops_first_space else joined).decode("utf-8", "replace")

    def detokenizer(
        self, *, skip_special: bool = True, continuing: bool = False, shown: frozenset[int] = frozenset()
    ) -> Detokenizer:
        """A decoder that takes one token at a time, from the beginning of a text or `continuing` one.

        It shows the special tokens `shown` as text, also where it skips the others.
        """
        return Detokenizer(self, skip_special=skip_special, continuing=continuing, shown=shown, texts=self._whole_texts)

    def split_special(self, text: str) -> list[str | int]:
        """The text in parts: special tokens by their ids, and what stands between them."""
        return self._special_names.split(text)

    @property
    def special_ids(self) -> Mapping[str, int]:
        """The special tokens by their names."""
        return self._special_ids

    def special_tokens_in(self, marks: tuple[str, ...]) -> frozenset[int]:
        """The special tokens of which these texts are made."""
        if marks not in self._special_of_marks:
            found = frozenset(i for name, i in self._special_ids.items() if any(name in mark for mark in marks))
            self._special_of_marks[marks] = found
        return self._special_of_marks[marks]

    @property
    def n_vocab(self) -> int:
        """How many ids there are, counting the ones no token has."""
        return len(self._vocab.pieces)

    @cached_property
    def max_token_bytes(self) -> int | None:
        """The most bytes of a text that one token can stand for; None if the tokenizer may drop parts of a text."""
        if self._vocab.shrinks is None:
            return None
        longest = max(
            (len(piece.encode("utf-8", "surrogateescape")) for piece in self._vocab.pieces if piece), default=0
        )
        return self._vocab.shrinks * max(4, longest)  # an unknown character has up to 4 bytes

    def cannot_fit(self, text: str, n_tokens: int) -> bool:
        """Whether a text certainly has more than `n_tokens` tokens, judged by its length: nothing is encoded."""
        most = self.max_token_bytes
        if most is None or 4 * len(text) <= n_tokens * most:  # a character has 1 to 4 bytes
            return False
        return len(text) > n_tokens * most or len(text.encode("utf-8", "surrogatepass")) > n_tokens * most

    @property
    def prefix(self) -> tuple[int, ...]:
        """The tokens that open a text."""
        return self._vocab.ends.prefix

    @property
    def suffix(self) -> tuple[int, ...]:
        """The tokens that close a text."""
        return self._vocab.ends.suffix

    @property
    def between(self) -> tuple[int, ...]:
        """The tokens between the two texts of a pair."""
        return self._vocab.ends.between

    @property
    def bos_id(self) -> int | None:
        """The token that opens a text, where the model has one."""
        return self._vocab.ends.bos_id

    @property
    def eos_id(self) -> int | None:
        """The token the model's files call its end of sequence, for chat templates; to stop, ask `is_eos`."""
        return self._vocab.ends.eos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every token that ends a reply."""
        return self._vocab.ends.eos_ids

    @property
    def drops_first_space(self) -> bool:
        """Whether decoding takes away the space that encoding put in front."""
        return self._vocab.drops_first_space

    def is_eos(self, token: int) -> bool:
        """Whether this token ends a reply."""
        return token in self._vocab.ends.eos_ids

    def is_special(self, token: int) -> bool:
        """Whether this token steers the model instead of standing for text."""
        return token in self._vocab.special

    def piece(self, token: int) -> str:
        """The token as the vocabulary writes it; empty for an id in a gap."""
        if not 0 <= token < len(self._vocab.pieces):
            raise TokenizerError(
                f"There is no token {token}: this tokenizer's ids run from 0 to {self.n_vocab - 1}. "
                "If a model produced it, the tokenizer belongs to another model."
            )
        return self._vocab.pieces[token] or ""

    def token_bytes(self, token: int) -> bytes:
        """The bytes this token stands for; they need not be whole characters."""
        piece = self.piece(token)
        return piece.encode("utf-8", "replace") if token in self._vocab.literal else self._vocab.alphabet(piece)

    def vocab_bytes(self) -> list[tuple[int, bytes]]:
        """Every token that stands for text, with its bytes: what a grammar can choose from."""
        return [(i, self.token_bytes(i)) for i in range(self.n_vocab) if not self.is_special(i) and self.piece(i)]
