"""Kinds of tokens, as GGUF numbers them."""

import re
from typing import Any

import numpy as np

from tahr.text.tokens.gguf_source import Kind
from tahr.text.tokens.vocab import Vocab, metaspace


def token_kinds(vocab: Vocab, tree: dict[str, Any], n_vocab: int) -> np.ndarray:
    """The kind of each token, as GGUF numbers it; rows of the embedding without a token are unused."""
    n_tokens = max(n_vocab, len(vocab.pieces))
    pieces = {i: piece for i, piece in enumerate(vocab.pieces) if piece is not None}
    added = [token["id"] for token in tree.get("added_tokens") or ()]
    kinds = np.full(n_tokens, Kind.UNUSED, np.int32)
    kinds[list(pieces)] = Kind.NORMAL
    if vocab.alphabet is metaspace:
        letters = [i for i, piece in pieces.items() if re.fullmatch("<0x[0-9A-F]{2}>", piece)]
        kinds[letters] = Kind.BYTE
    kinds[added] = Kind.USER_DEFINED
    kinds[sorted(vocab.special)] = Kind.CONTROL
    if (unknown := unknown_id(tree)) is not None and vocab.alphabet is metaspace:
        kinds[unknown] = Kind.UNKNOWN
    return kinds


def unknown_id(tree: dict[str, Any]) -> int | None:
    found: int | None = tree["model"]["vocab"].get(tree["model"].get("unk_token"))
    return found
