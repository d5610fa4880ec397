"""Letters of a vocabulary in tokenizer.json: the bytes they stand for, and those that rules drop."""

from collections.abc import Callable, Mapping
from typing import Any

from tahr.errors import TokenizerError
from tahr.text.tokens.json_parts import steps_of
from tahr.text.tokens.vocab import SPACE, byte_level, metaspace, wordpiece


def alphabet_of(tree: dict[str, Any]) -> Callable[[str], bytes]:
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


def shrinks(tree: dict[str, Any]) -> int | None:
    """How many bytes of a text may become one byte in its tokens; None where a rule may drop any number."""
    model = tree["model"]
    added = tree.get("added_tokens") or ()
    steps = [step for part in ("pre_tokenizer", "normalizer") for step in steps_of(tree.get(part))]
    fuses = model.get("fuse_unk") and model.get("unk_token") is not None and not model.get("byte_fallback")
    swallows = any(token.get("lstrip") or token.get("rstrip") for token in added)
    if model.get("type", "BPE") != "BPE" or fuses or swallows or not all(map(keeps_text, steps)):
        return None
    return 4 if any(step.get("type") == "NFC" for step in steps) else 1  # NFC joins a character and its accents


def keeps_text(step: Mapping[str, Any]) -> bool:
    kind = step.get("type")
    if kind in ("Split", "Punctuation"):
        return step.get("behavior") != "Removed"
    if kind == "Replace":
        return step.get("pattern") == {"String": " "} and step.get("content") == SPACE
    return kind in ("ByteLevel", "Digits", "Metaspace", "NFC", "Prepend", "Sequence")


def strips_space(tree: dict[str, Any]) -> bool:
    def strips(step: Mapping[str, Any]) -> bool:
        if step.get("type") == "Metaspace":
            return bool(step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True))
        return step.get("type") == "Strip" and bool(step.get("start"))

    return any(strips(step) for step in steps_of(tree.get("decoder")))
