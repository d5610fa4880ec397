"""Vocabularies from Hugging Face files: tokenizer.json, and what the files beside it say about special tokens."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tahr.errors import TokenizerError
from tahr.text.tokens.json_checks import refuse_growth, refuse_odd_ids
from tahr.text.tokens.json_ends import ends_of
from tahr.text.tokens.json_letters import alphabet_of, shrinks, strips_space
from tahr.text.tokens.json_object import read_bytes, read_object
from tahr.text.tokens.json_parts import encoder_of
from tahr.text.tokens.long_text import Encoder
from tahr.text.tokens.vocab import LibraryErrors, Vocab, alias, metaspace, wordpiece
from tahr.text.tokens.vocab_merges import byte_level_json, is_byte_level
from tahr.text.tokens.vocab_txt import tokenizer_json

_FOREIGN = {
    "tokenizer.model": "a SentencePiece model",
    "tekken.json": "a Mistral tokenizer",
    "vocab.json": "a slow BPE tokenizer",
}

_BESIDE = ("special_tokens_map.json", "tokenizer_config.json", "config.json", "generation_config.json")


def read_dir(path: Path) -> Vocab:
    """The vocabulary of a directory in the Hugging Face layout."""
    file = path / "tokenizer.json"
    pieces = path / "vocab.txt"
    pairs = path / "vocab.json", path / "merges.txt"
    if not file.is_file() and all(each.is_file() for each in pairs) and is_byte_level(path):
        return read_pairs(path, pairs)
    if not file.is_file() and not pieces.is_file():
        found = [f"{name} is {what}" for name, what in _FOREIGN.items() if (path / name).is_file()]
        hint = f" ({'; '.join(found)}, which needs converting)" if found else ""
        raise TokenizerError(f"There is no tokenizer.json in {path}{hint}: add the one of this model.")
    beside = {name: read_object(path / name, TokenizerError) for name in _BESIDE}
    config = beside["special_tokens_map.json"] | beside["tokenizer_config.json"]
    generation = beside["config.json"] | beside["generation_config.json"]
    if file.is_file():
        return read_json(read_bytes(file, TokenizerError), config, generation)
    return read_json(tokenizer_json(read_bytes(pieces, TokenizerError), config), config, generation)


def read_pairs(path: Path, pairs: tuple[Path, Path]) -> Vocab:
    """The vocabulary of a vocab.json and a merges.txt."""
    vocabulary, merges = (read_bytes(each, TokenizerError) for each in pairs)
    config = read_object(path / "tokenizer_config.json", TokenizerError)
    generation = read_object(path / "generation_config.json", TokenizerError)
    return read_json(byte_level_json(vocabulary, merges, config), config, generation)


def read_json(data: bytes | str, config: Mapping[str, Any], generation: Mapping[str, Any]) -> Vocab:
    """The vocabulary of a tokenizer.json, given the content of the files beside it."""
    with LibraryErrors("tokenizer.json cannot be read"):
        tree = json.loads(data)
        refuse_odd_ids(tree)
        refuse_growth(tree)
        parsing = Tokenizer.from_str(data if isinstance(data, str) else data.decode())
        return _vocab(tree, _encode_all(parsing), config, generation)


def _encode_all(tokenizer: Any) -> Any:
    """The tokenizer without what its file may ask for and inference must not do: cut, pad or randomise texts."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None) is not None:
        tokenizer.model.dropout = None
    return tokenizer


def _vocab(
    tree: dict[str, Any],
    parsing: Any,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
) -> Vocab:
    added = {token["id"]: token for token in tree.get("added_tokens") or ()}
    special = frozenset(i for i, token in added.items() if token.get("special"))
    alphabet = alphabet_of(tree)
    return Vocab(
        parsing=encoder_of(tree, parsing),
        plain=_plain(tree),
        pieces=_pieces(parsing),
        special=special,
        # SentencePiece's decoder rewrites added tokens like any other.
        literal=frozenset() if alphabet is metaspace else frozenset(added),
        alphabet=alphabet,
        drops_first_space=alphabet is wordpiece or (alphabet is metaspace and strips_space(tree)),
        ends=ends_of(parsing, {token["content"]: i for i, token in added.items()}, config, generation),
        shrinks=shrinks(tree),
    )


def _plain(tree: dict[str, Any]) -> Encoder:
    """An encoder that knows the special tokens by their aliases alone, built when it is first needed."""

    @cache
    def encoder() -> Encoder:
        added = [
            {**token, "content": alias(token["id"])} if token.get("special") else token
            for token in tree.get("added_tokens") or ()
        ]
        hidden = {token["content"]: token["id"] for token in tree.get("added_tokens") or () if token.get("special")}
        model = {**tree["model"], "vocab": _hide(tree["model"], hidden)}
        if isinstance(model["vocab"], dict):  # without a dictionary the library would number them anew
            model["vocab"] |= {token["content"]: token["id"] for token in added}
        plain = {**tree, "added_tokens": added, "model": model}
        return encoder_of(plain, _encode_all(Tokenizer.from_str(json.dumps(plain))))

    return lambda text: encoder()(text)


def _hide(model: dict[str, Any], hidden: Mapping[str, int]) -> Any:
    """The vocabulary without the names of special tokens."""
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        return {piece: i for piece, i in vocab.items() if piece not in hidden or piece == model.get("unk_token")}
    # A list's places are ids, so the special ones keep theirs under another name.
    return [[alias(i) if piece in hidden else piece, score] for i, (piece, score) in enumerate(vocab)]


def _pieces(parsing: Any) -> list[str | None]:
    ids: dict[str, int] = parsing.get_vocab(with_added_tokens=True)
    if not ids:
        raise TokenizerError("tokenizer.json holds no tokens: download it again.")
    pieces: list[str | None] = [None] * (max(ids.values()) + 1)
    for piece, i in ids.items():
        pieces[i] = piece
    return pieces
