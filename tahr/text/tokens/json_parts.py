"""Where long texts are cut for a tokenizer.json: at added tokens and, if it splits words by known rules, between words.

The library looks for added tokens before it applies any rule, so that what stands between two of them can be encoded
alone. A file with rules that look across such places has long texts encoded by one call, which nothing can cancel.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tahr.text.tokens.long_text import LONG, Encoder, ids_of, parts, remembered
from tahr.text.tokens.pretokenizers import PRE_TOKENIZERS
from tahr.text.tokens.special_names import MAX_NAME, SpecialNames

_KNOWN_SPLITS = frozenset(row.splits for row in PRE_TOKENIZERS.values() if row.cuts_at_words)
_CUT_INSIDE = re.compile(r"\n[A-Za-z]|[a-z] (?:[A-Za-z]|$)")  # marks inside a name: a cut between words might divide it


def encoder_of(tree: Mapping[str, Any], tokenizer: Any) -> Encoder:
    """The library's tokenizer of a file, for texts of any length."""
    whole = ids_of(tokenizer)
    added = tree.get("added_tokens") or ()
    if not stands_alone(added, steps_of(tree.get("pre_tokenizer"))):
        return lambda text: (whole(text),)
    first = [token["content"] for token in added if is_found_first(token)]
    names = SpecialNames({name: tokenizer.token_to_id(name) for name in first})
    at_words = cuts_at_words(tree) and not any(_CUT_INSIDE.search(token["content"]) for token in added)
    encode = remembered(whole)

    def between(text: str) -> Iterator[Sequence[int]]:
        if text:
            yield from map(encode, parts(text) if at_words else (text,))

    def in_parts(text: str) -> Iterator[Sequence[int]]:
        end = 0
        for begin, stop, token in names.find(text):
            yield from between(text[end:begin])
            yield (token,)
            end = stop
        yield from between(text[end:])

    return lambda text: (whole(text),) if len(text) <= LONG else in_parts(text)


def is_found_first(token: Mapping[str, Any]) -> bool:
    return bool(token["content"]) and not token.get("normalized")


def stands_alone(added: Sequence[Mapping[str, Any]], steps: Iterable[Mapping[str, Any]]) -> bool:
    """Whether no added token depends on what is around it, and no rule on where in the whole text it is applied."""
    odd = any(token.get(flag) for token in added for flag in ("lstrip", "rstrip", "single_word"))
    first = any(step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") == "first" for step in steps)
    return not odd and not first and max((len(token["content"]) for token in added), default=0) <= MAX_NAME


def cuts_at_words(tree: Mapping[str, Any]) -> bool:
    """Whether pieces always begin where `parts` cuts: so they do by the rules of released vocabularies."""
    normal = {step.get("type") for step in steps_of(tree.get("normalizer"))}
    steps = list(steps_of(tree.get("pre_tokenizer")))
    splits = tuple(regex_of(step) for step in steps if step.get("type") == "Split")
    spelt = [step for step in steps if step.get("type") == "ByteLevel"]
    kinds = {step.get("type") for step in steps}
    if not normal <= {"NFC", "Sequence"} or not kinds <= {"Split", "ByteLevel", "Digits", "Sequence"}:
        return False
    if len(spelt) != 1 or spelt[0].get("add_prefix_space", True):
        return False
    return splits in _KNOWN_SPLITS or (not splits and bool(spelt[0].get("use_regex", True)))


def regex_of(step: Mapping[str, Any]) -> str:
    """The expression whose matches and gaps a step makes pieces of; empty if it does something else."""
    if step.get("behavior") != "Isolated" or step.get("invert"):
        return ""
    return str((step.get("pattern") or {}).get("Regex", ""))


def steps_of(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """A part of tokenizer.json and, where it is a sequence, the parts inside."""
    if part is None:
        return
    yield part
    for inner in ("decoders", "pretokenizers", "normalizers"):
        for step in part.get(inner) or ():
            yield from steps_of(step)
