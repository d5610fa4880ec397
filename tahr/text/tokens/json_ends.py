"""Special tokens at the ends of texts and replies, from tokenizer.json and the files beside it."""

from collections.abc import Mapping
from typing import Any

from tahr.errors import TokenizerError
from tahr.text.tokens.vocab import MAX_VOCAB, Ends, end_markers, shorten

# Classes of tokenizers that do what tokenizer.json says of BOS and EOS, whatever their configuration says.
_WITHOUT_SWITCHES = ("PreTrainedTokenizerFast", "TokenizersBackend")


def ends_of(
    parsing: Any,
    added: dict[str, int],
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
) -> Ends:
    bos = named(parsing, config, "bos_token")
    eos = named(parsing, config, "eos_token")
    stated = ends_of_replies(generation.get("eos_token_id"), parsing, set() if eos is None else {eos})
    prefix, suffix = processor_ends(parsing)
    config = {} if config.get("tokenizer_class") in _WITHOUT_SWITCHES else config
    return Ends(
        between=processor_between(parsing, suffix),
        prefix=switched(prefix, bos, config.get("add_bos_token"), at_front=True),
        suffix=switched(suffix, eos, config.get("add_eos_token"), at_front=False),
        bos_id=bos,
        eos_id=eos if eos is not None else min(stated, default=None),
        # Names are only asked where no file says what ends a reply.
        eos_ids=frozenset(stated) or end_markers(added),
    )


def named(parsing: Any, config: Mapping[str, Any], field: str) -> int | None:
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


def ends_of_replies(value: Any, parsing: Any, named: set[int]) -> set[int]:
    """The tokens that end a reply: those named, and those numbered. A number without a token never comes, so it only
    matters where nothing else ends a reply; one below 0 says that there is none."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    odd = [i for i in listed if type(i) is not int or (i >= 0 and not has_token(parsing, i))]
    found = named | {i for i in listed if type(i) is int and has_token(parsing, i)}
    if odd and (not found or any(type(i) is not int for i in odd)):
        raise TokenizerError(
            f"The configuration says token {shorten(odd[0])} ends a reply, but tokenizer.json has no such token: "
            "the files belong to different models."
        )
    return found


def has_token(parsing: Any, i: int) -> bool:
    return 0 <= i < MAX_VOCAB and parsing.id_to_token(i) is not None


def processor_ends(parsing: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens that the post-processor of tokenizer.json puts before and after a text."""
    bare: list[int] = parsing.encode("a", add_special_tokens=False).ids
    full: list[int] = parsing.encode("a", add_special_tokens=True).ids
    start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
    return tuple(full[:start]), tuple(full[start + len(bare) :])


def processor_between(parsing: Any, suffix: tuple[int, ...]) -> tuple[int, ...]:
    """Tokens that the post-processor puts between the texts of a pair; the end of a text, where it puts none."""
    first: list[int] = parsing.encode("a", add_special_tokens=False).ids
    pair: list[int] = parsing.encode("a", "a", add_special_tokens=True).ids
    at = [i for i in range(len(pair)) if pair[i : i + len(first)] == first]
    return tuple(pair[at[0] + len(first) : at[-1]]) if len(at) > 1 and at[-1] > at[0] + len(first) else suffix


def switched(
    ids: tuple[int, ...],
    token: int | None,
    wanted: bool | None,
    *,
    at_front: bool,
) -> tuple[int, ...]:
    """Ends with the configuration's own switch for this token applied, where there is one."""
    if wanted is None or token is None or wanted == (token in ids):
        return ids
    if not wanted:
        return tuple(i for i in ids if i != token)
    return (token, *ids) if at_front else (*ids, token)
