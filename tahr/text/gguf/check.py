"""Proof that a tokenizer gives the same tokens once it is in a GGUF."""

from collections.abc import Iterable
from typing import Any

from tahr.errors import TokenizerError
from tahr.text.gguf.cuts import PROBE
from tahr.text.tokens.gguf_vocab import read_gguf
from tahr.text.tokens.tokenizer import Tokenizer as OurTokenizer
from tahr.text.tokens.vocab import Vocab


def check_same(vocab: Vocab, fields: dict[str, Any]) -> None:
    """Refuse a tokenizer that would read the probe, or open and close a text, in another way."""
    again = read_gguf(fields)
    same = probed(again) == probed(vocab)
    if same and ends_of(again) == ends_of(vocab) and again.ends.eos_ids >= vocab.ends.eos_ids:
        return
    raise TokenizerError(
        "The tokenizer gives other tokens once it is put into a GGUF, so the model would read other text than it was "
        "trained on. Run the checkpoint as it is."
    )


def probed(vocab: Vocab) -> list[list[int]]:
    tokenizer = OurTokenizer(vocab)
    return [tokenizer.encode(PROBE, add_special=False, parse_special=flag) for flag in (True, False)]


def ends_of(vocab: Vocab) -> tuple[Iterable[int], Iterable[int]]:
    return vocab.ends.prefix, vocab.ends.suffix
