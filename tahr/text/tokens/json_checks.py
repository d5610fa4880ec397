"""Refusals of tokenizer.json files whose ids or rules would take the memory of the machine."""

from math import prod
from typing import Any

from tahr.errors import TokenizerError
from tahr.text.tokens.json_parts import steps_of
from tahr.text.tokens.vocab import MAX_VOCAB

MAX_GROWTH = 64  # letters that rules may make of one

MAX_ADDED = 4096  # tokens that may be put around a text


def refuse_odd_ids(tree: dict[str, Any]) -> None:
    """Ids become places in a list, and the library takes memory for whatever a file says."""
    vocab = tree["model"]["vocab"]
    ids = [*(vocab.values() if isinstance(vocab, dict) else ()), *(t["id"] for t in tree.get("added_tokens") or ())]
    if len(vocab) > MAX_VOCAB or any(type(i) is not int or not 0 <= i < MAX_VOCAB for i in ids):
        raise TokenizerError(
            f"tokenizer.json numbers a token otherwise than from 0 to {MAX_VOCAB - 1}: download it again."
        )


def refuse_growth(tree: dict[str, Any]) -> None:
    """Rules that make long texts of short ones: the library takes the memory for them, or ends the process."""
    steps = list(steps_of(tree.get("normalizer")))
    grows = prod(max(1, len(str(step.get("content") or step.get("prepend") or ""))) for step in steps)
    processors = processors_of(tree.get("post_processor"))
    forms = [part for each in processors for form in ("single", "pair") for part in each.get(form) or ()]
    tokens = [token for each in processors for token in (each.get("special_tokens") or {}).values()]
    n_added = len(forms) * max((len(token.get("ids") or ()) for token in tokens), default=0)
    if grows > MAX_GROWTH or n_added > MAX_ADDED:
        raise TokenizerError(
            "tokenizer.json has rules that make a text many times longer, which no real one has: download it again."
        )


def processors_of(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    inner = (part or {}).get("processors") or ()
    return [*([part] if part else ()), *(each for step in inner for each in processors_of(step))]
