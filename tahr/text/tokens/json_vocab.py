"""Vocabularies from Hugging Face files: tokenizer.json, and what the files beside it say about special tokens."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tahr.errors import TokenizerError
from tahr.text.tokens.json_object import read_bytes, read_object
from tahr.text.tokens.json_parts import encoder_of, steps_of
from tahr.text.tokens.long_text import Encoder
from tahr.text.tokens.vocab import (
    MAX_VOCAB,
    SPACE,
    Ends,
    LibraryErrors,
    Vocab,
    alias,
    byte_level,
    end_markers,
    metaspace,
    shorten,
    wordpiece,
)

MAX_GROWTH = 64  # letters that rules may make of one
MAX_ADDED = 4096  # tokens that may be put around a text

_FOREIGN = {
    "tokenizer.model": "a SentencePiece model",
    "tekken.json": "a Mistral tokenizer",
    "vocab.json": "a slow BPE tokenizer",
    "vocab.txt": "a slow WordPiece tokenizer",
}


# Classes of tokenizers that do what tokenizer.json says of BOS and EOS, whatever their configuration says.
_WITHOUT_SWITCHES = ("PreTrainedTokenizerFast", "TokenizersBackend")
_BESIDE = ("special_tokens_map.json", "tokenizer_config.json", "config.json", "generation_config.json")


def read_dir(path: Path) -> Vocab:
    """The vocabulary of a directory in the Hugging Face layout."""
    file = path / "tokenizer.json"
    if not file.is_file():
        found = [f"{name} is {what}" for name, what in _FOREIGN.items() if (path / name).is_file()]
        hint = f" ({'; '.join(found)}, which needs converting)" if found else ""
        raise TokenizerError(f"There is no tokenizer.json in {path}{hint}: add the one of this model.")
    beside = {name: read_object(path / name, TokenizerError) for name in _BESIDE}
    config = beside["special_tokens_map.json"] | beside["tokenizer_config.json"]
    generation = beside["config.json"] | beside["generation_config.json"]
    return read_json(read_bytes(file, TokenizerError), config, generation)


def read_json(data: bytes | str, config: Mapping[str, Any], generation: Mapping[str, Any]) -> Vocab:
    """The vocabulary of a tokenizer.json, given the content of the files beside it."""
    with LibraryErrors("tokenizer.json cannot be read"):
        tree = json.loads(data)
        _refuse_odd_ids(tree)
        _refuse_growth(tree)
        parsing = Tokenizer.from_str(data if isinstance(data, str) else data.decode())
        return _vocab(tree, _encode_all(parsing), config, generation)


def _refuse_odd_ids(tree: dict[str, Any]) -> None:
    """Ids become places in a list, and the library makes room for whatever a file says."""
    vocab = tree["model"]["vocab"]
    ids = [*(vocab.values() if isinstance(vocab, dict) else ()), *(t["id"] for t in tree.get("added_tokens") or ())]
    if len(vocab) > MAX_VOCAB or any(type(i) is not int or not 0 <= i < MAX_VOCAB for i in ids):
        raise TokenizerError(
            f"tokenizer.json numbers a token otherwise than from 0 to {MAX_VOCAB - 1}: download it again."
        )


def _refuse_growth(tree: dict[str, Any]) -> None:
    """Rules that make long texts of short ones: the library takes the memory for them, or ends the process."""
    steps = list(steps_of(tree.get("normalizer")))
    grows = prod(max(1, len(str(step.get("content") or step.get("prepend") or ""))) for step in steps)
    processors = _processors(tree.get("post_processor"))
    forms = [part for each in processors for form in ("single", "pair") for part in each.get(form) or ()]
    tokens = [token for each in processors for token in (each.get("special_tokens") or {}).values()]
    n_added = len(forms) * max((len(token.get("ids") or ()) for token in tokens), default=0)
    if grows > MAX_GROWTH or n_added > MAX_ADDED:
        raise TokenizerError(
            "tokenizer.json has rules that make a text many times longer, which no real one has: download it again."
        )


def _processors(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    inner = (part or {}).get("processors") or ()
    return [*([part] if part else ()), *(each for step in inner for each in _processors(step))]


def _encode_all(tokenizer: Any) -> Any:
    """The tokenizer without what its file may ask for and inference must not do: cut, pad or randomise texts."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None) is not None:
        tokenizer.model.dropout = None
    return tokenizer


def _vocab(tree: dict[str, Any], parsing: Any, config: Mapping[str, Any], generation: Mapping[str, Any]) -> Vocab:
    added = {token["id"]: token for token in tree.get("added_tokens") or ()}
    special = frozenset(i for i, token in added.items() if token.get("special"))
    alphabet = _alphabet(tree)
    return Vocab(
        parsing=encoder_of(tree, parsing),
        plain=_plain(tree),
        pieces=_pieces(parsing),
        special=special,
        # SentencePiece's decoder rewrites added tokens like any other.
        literal=frozenset() if alphabet is metaspace else frozenset(added),
        alphabet=alphabet,
        drops_first_space=alphabet is wordpiece or (alphabet is metaspace and _strips_space(tree)),
        ends=_ends(parsing, {token["content"]: i for i, token in added.items()}, config, generation),
        shrinks=_shrinks(tree),
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


def _alphabet(tree: dict[str, Any]) -> Callable[[str], bytes]:
    steps = [step for part in ("decoder", "pre_tokenizer", "normalizer") for step in steps_of(tree.get(part))]
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return byte_level
    if tree.get("model", {}).get("type") == "WordPiece":
        return wordpiece
    if kinds & {"Metaspace", "ByteFallback"} or any(SPACE in str(step.get("content", "")) for step in steps):
        return metaspace
    raise TokenizerError(
        "tokenizer.json is neither byte-level, SentencePiece nor WordPiece, so Tahr cannot tell which bytes its tokens "
        "stand for: use another file of this model."
    )


def _shrinks(tree: dict[str, Any]) -> int | None:
    """How many bytes of a text may become one byte in its tokens; None where a rule may drop any number."""
    model = tree["model"]
    added = tree.get("added_tokens") or ()
    steps = [step for part in ("pre_tokenizer", "normalizer") for step in steps_of(tree.get(part))]
    fuses = model.get("fuse_unk") and model.get("unk_token") is not None and not model.get("byte_fallback")
    swallows = any(token.get("lstrip") or token.get("rstrip") for token in added)
    if model.get("type", "BPE") != "BPE" or fuses or swallows or not all(map(_keeps_text, steps)):
        return None
    return 4 if any(step.get("type") == "NFC" for step in steps) else 1  # NFC joins a character and its accents


def _keeps_text(step: Mapping[str, Any]) -> bool:
    kind = step.get("type")
    if kind in ("Split", "Punctuation"):
        return step.get("behavior") != "Removed"
    if kind == "Replace":
        return step.get("pattern") == {"String": " "} and step.get("content") == SPACE
    return kind in ("ByteLevel", "Digits", "Metaspace", "NFC", "Prepend", "Sequence")


def _strips_space(tree: dict[str, Any]) -> bool:
    def strips(step: Mapping[str, Any]) -> bool:
        if step.get("type") == "Metaspace":
            return bool(step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True))
        return step.get("type") == "Strip" and bool(step.get("start"))

    return any(strips(step) for step in steps_of(tree.get("decoder")))


def _ends(parsing: Any, added: dict[str, int], config: Mapping[str, Any], generation: Mapping[str, Any]) -> Ends:
    bos = _named(parsing, config, "bos_token")
    eos = _named(parsing, config, "eos_token")
    stated = _stated(generation.get("eos_token_id"), parsing, set() if eos is None else {eos})
    prefix, suffix = _processor_ends(parsing)
    config = {} if config.get("tokenizer_class") in _WITHOUT_SWITCHES else config
    return Ends(
        between=_processor_between(parsing, suffix),
        prefix=_switched(prefix, bos, config.get("add_bos_token"), at_front=True),
        suffix=_switched(suffix, eos, config.get("add_eos_token"), at_front=False),
        bos_id=bos,
        eos_id=eos if eos is not None else min(stated, default=None),
        # Names are only asked where no file says what ends a reply.
        eos_ids=frozenset(stated) or end_markers(added),
    )


def _named(parsing: Any, config: Mapping[str, Any], field: str) -> int | None:
    token = config.get(field)
    content = token.get("content") if isinstance(token, dict) else token
    if content is None or content == "":
        return None
    if not isinstance(content, str):
        raise TokenizerError(f"The configuration's {field} is {shorten(content)}, not a token: download it again.")
    found: int | None = parsing.token_to_id(content)
    if found is None:
        raise TokenizerError(
            f"The configuration names {content!r} as {field}, but tokenizer.json has no such token: "
            "the files belong to different models."
        )
    return found


def _stated(value: Any, parsing: Any, named: set[int]) -> set[int]:
    """The tokens that end a reply: those named, and those numbered. A number without a token never comes, so it only
    matters where nothing else ends a reply; one below 0 says that there is none."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    odd = [i for i in listed if type(i) is not int or (i >= 0 and not _has_token(parsing, i))]
    found = named | {i for i in listed if type(i) is int and _has_token(parsing, i)}
    if odd and (not found or any(type(i) is not int for i in odd)):
        raise TokenizerError(
            f"The configuration says token {shorten(odd[0])} ends a reply, but tokenizer.json has no such token: "
            "the files belong to different models."
        )
    return found


def _has_token(parsing: Any, i: int) -> bool:
    return 0 <= i < MAX_VOCAB and parsing.id_to_token(i) is not None


def _processor_ends(parsing: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens that the post-processor of tokenizer.json puts before and after a text."""
    bare: list[int] = parsing.encode("a", add_special_tokens=False).ids
    full: list[int] = parsing.encode("a", add_special_tokens=True).ids
    start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
    return tuple(full[:start]), tuple(full[start + len(bare) :])


def _processor_between(parsing: Any, suffix: tuple[int, ...]) -> tuple[int, ...]:
    """Tokens that the post-processor puts between the texts of a pair; the end of a text, where it puts none."""
    first: list[int] = parsing.encode("a", add_special_tokens=False).ids
    pair: list[int] = parsing.encode("a", "a", add_special_tokens=True).ids
    at = [i for i in range(len(pair)) if pair[i : i + len(first)] == first]
    return tuple(pair[at[0] + len(first) : at[-1]]) if len(at) > 1 and at[-1] > at[0] + len(first) else suffix


def _switched(ids: tuple[int, ...], token: int | None, wanted: bool | None, *, at_front: bool) -> tuple[int, ...]:
    """Ends with the configuration's own switch for this token applied, where there is one."""
    if wanted is None or token is None or wanted == (token in ids):
        return ids
    if not wanted:
        return tuple(i for i in ids if i != token)
    return (token, *ids) if at_front else (*ids, token)
