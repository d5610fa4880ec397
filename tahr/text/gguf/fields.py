"""A Hugging Face tokenizer in the words of GGUF (`tokenizer.ggml.*`): the way back of `vocab`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tahr.errors import TokenizerError
from tahr.text.gguf.check import check_same
from tahr.text.gguf.cuts import cuts_named, without_words, words_of
from tahr.text.gguf.kinds import token_kinds, unknown_id
from tahr.text.templates.chat import template_for
from tahr.text.tokens.gguf_source import KEY
from tahr.text.tokens.json_object import read_bytes
from tahr.text.tokens.json_vocab import read_dir
from tahr.text.tokens.tokenizer import Tokenizer as OurTokenizer
from tahr.text.tokens.vocab import SPACE, Vocab, byte_level, end_markers, metaspace


def gguf_fields(directory: Path, n_vocab: int) -> dict[str, Any]:
    """The tokenizer and chat template of a model directory as metadata; checked to give the same tokens."""
    vocab = read_dir(directory)
    tree = json.loads(read_bytes(directory / "tokenizer.json", TokenizerError))
    kind = tree["model"].get("type")
    if kind != "BPE" or vocab.alphabet not in KINDS:
        raise TokenizerError(f"Tahr cannot put a tokenizer of the kind {kind!r} into a GGUF yet.")
    kinds = token_kinds(vocab, tree, n_vocab)
    pieces = [piece or f"[PAD{i}]" for i, piece in enumerate(vocab.pieces)]
    pieces += [f"[PAD{i}]" for i in range(len(pieces), n_vocab)]
    fields = {"tokens": pieces, "token_type": kinds}
    fields |= KINDS[vocab.alphabet](tree, pieces)
    fields |= end_fields(vocab, tree)
    named = {KEY + name: value for name, value in fields.items()}
    check_same(vocab, named)
    return named | template_fields(directory, vocab)


def merges_of(tree: dict[str, Any]) -> list[tuple[str, str]]:
    """The pairs that merge, first ones first; newer files hold pairs, older ones strings."""
    pairs = (pair.split(" ", 1) if isinstance(pair, str) else pair for pair in tree["model"]["merges"])
    return [(left, right) for left, right in pairs]


def byte_level_fields(tree: dict[str, Any], pieces: list[str]) -> dict[str, Any]:
    merges = [f"{left} {right}" for left, right in merges_of(tree)]
    return {"model": "gpt2", "pre": cuts_named(tree), "merges": merges}


def sentencepiece_fields(tree: dict[str, Any], pieces: list[str]) -> dict[str, Any]:
    """GGUF ranks merges by the score of what they make: the later a piece is first made, the lower."""
    made: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges_of(tree)):
        made.setdefault(left + right, rank)
    ranks = [made.get(piece, len(made)) for piece in pieces]
    scores = -np.array(ranks, np.float32)
    return {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": adds_space(tree)}


def adds_space(tree: dict[str, Any]) -> bool:
    """Whether a text is read as if a space stood before it."""
    rules = without_words(tree)
    text = rules.normalizer.normalize_str("a") if rules.normalizer else "a"
    if text.startswith(SPACE):
        return True
    words = words_of(rules.pre_tokenizer, "a") if rules.pre_tokenizer else [""]
    return words[0].startswith(SPACE)


KINDS: dict[Callable[[str], bytes], Callable[[dict[str, Any], list[str]], dict[str, Any]]] = {
    byte_level: byte_level_fields,
    metaspace: sentencepiece_fields,
}


def end_fields(vocab: Vocab, tree: dict[str, Any]) -> dict[str, Any]:
    """The tokens that open and end texts, and whether they are put there."""
    ends = vocab.ends
    known = end_markers({vocab.pieces[i] or "": i for i in vocab.special})
    others = iter(sorted(ends.eos_ids - known - {ends.eos_id}))
    ids = {"bos": ends.bos_id, "eos": ends.eos_id, "eot": next(others, None), "eom": next(others, None)}
    if vocab.alphabet is metaspace:
        ids["unknown"] = unknown_id(tree)
    fields: dict[str, Any] = {f"{name}_token_id": i for name, i in ids.items() if i is not None}
    return fields | {"add_bos_token": bool(ends.prefix), "add_eos_token": bool(ends.suffix)}


def template_fields(directory: Path, vocab: Vocab) -> dict[str, str]:
    template = template_for(directory, OurTokenizer(vocab))
    if template is None:
        return {}
    tools = {"tokenizer.chat_template.tool_use": template.tool_use} if template.tool_use else {}
    return {"tokenizer.chat_template": template.source, **tools}
