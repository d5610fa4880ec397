"""Vocabularies from GGUF metadata: added tokens around plain text, and the tokens that open and end it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, models

from tahr.errors import TokenizerError
from tahr.text.tokens.gguf_models import BUILDERS
from tahr.text.tokens.gguf_source import KEY, Kind, TokenizerRecipe, VocabSource, read_source
from tahr.text.tokens.long_text import LONG, Encoder, encoding, remembered
from tahr.text.tokens.special_names import MAX_NAME, SpecialNames
from tahr.text.tokens.vocab import Ends, LibraryErrors, Vocab, alias, end_markers

_SPACE = re.compile(r"[^\S\x1c-\x1f]*")  # the library's notion of white space

Span = tuple[int, int, int]  # a token, or what stands between two, and where it begins and ends in a text


def read_gguf(metadata: Mapping[str, Any]) -> Vocab:
    """The vocabulary a GGUF file carries."""
    with LibraryErrors("The file's tokenizer cannot be built"):
        source = read_source(metadata)
        kind = source.text("model")
        if kind not in BUILDERS:
            raise TokenizerError(
                f"The file's tokenizer is of the kind {kind!r}, and Tahr knows {', '.join(BUILDERS)}: "
                "use another file of this model, or its Hugging Face form with tokenizer.json."
            )
        return _vocab(source, BUILDERS[kind](source))


def _vocab(source: VocabSource, recipe: TokenizerRecipe) -> Vocab:
    special = source.of_kind(Kind.CONTROL, Kind.UNKNOWN)
    named = source.of_kind(Kind.USER_DEFINED)
    by_name = {i: source.pieces[i] for i in special + named}
    hidden = by_name | {i: alias(i) for i in special}
    return Vocab(
        parsing=_around(source, by_name, recipe.encode),
        plain=_later(lambda: _around(source, hidden, recipe.encode)),
        pieces=source.pieces,
        special=frozenset(special),
        literal=frozenset(special + named),
        alphabet=recipe.alphabet,
        drops_first_space=recipe.drops_first_space,
        ends=_ends(source, recipe),
        shrinks=1 if recipe.keeps_text and not any(map(_swallows_space(source), source.pieces)) else None,
    )


def _later(build: Callable[[], Encoder]) -> Encoder:
    """An encoder that is built when it is first needed: most models never are asked for it."""
    built = cache(build)
    return lambda text: built()(text)


def _around(source: VocabSource, names: Mapping[int, str], encode: Callable[[str], list[int]]) -> Encoder:
    """An encoder that finds added tokens by name in a text and leaves the stretches between them to `encode`."""
    ids = {name: i for i, name in names.items() if name}
    if not ids:
        return lambda text: (encode(text),)
    between = len(source.pieces)  # an id no token has
    swallows = _swallows_space(source)
    at_once = _library_finder(source, ids, between)
    is_long = max(map(len, ids)) > MAX_NAME
    one_by_one = cache(lambda: SpecialNames(ids))  # sorted when a long text comes
    stretch = remembered(encode)

    def found(text: str) -> Iterator[Span]:
        if len(text) <= LONG or is_long:
            return at_once(text)
        return _with_between(text, one_by_one().find(text), between, lambda token: swallows(source.pieces[token]))

    def split_and_encode(text: str) -> Iterator[Sequence[int]]:
        for token, start, end in found(text):
            yield stretch(text[start:end]) if token == between else (token,)

    return split_and_encode


def _library_finder(source: VocabSource, ids: Mapping[str, int], between: int) -> Callable[[str], Iterator[Span]]:
    """A finder of added tokens by one call, which for each of them takes some kilobytes and ten microseconds."""
    finder = Tokenizer(models.WordLevel({**ids, "": between}, unk_token=""))
    swallows = _swallows_space(source)
    rows = ((name, swallows(source.pieces[i])) for name, i in ids.items())
    finder.add_tokens([AddedToken(name, normalized=False, rstrip=takes) for name, takes in rows])

    def found(text: str) -> Iterator[Span]:
        spans = encoding(finder, text)
        return ((token, start, end) for token, (start, end) in zip(spans.ids, spans.offsets, strict=True))

    return found


def _with_between(
    text: str,
    found: Iterator[Span],
    between: int,
    swallows: Callable[[int], bool],
) -> Iterator[Span]:
    """Tokens as `SpecialNames` finds them, with the stretches between them and the white space that some take along."""
    last = 0
    for start, stop, token in found:
        if start > last:
            yield between, last, start
        last = stop
        if swallows(token) and (space := _SPACE.match(text, stop)):
            last = space.end()
        yield token, start, last
    if last < len(text):
        yield between, last, len(text)


def _swallows_space(source: VocabSource) -> Callable[[str], bool]:
    # Phi-3's markers eat the white space after them, which GGUF has no field for.
    name = str(source.metadata.get("general.name", "")).lower()
    phi3 = "phi-3" in name or "phi3" in name
    return lambda piece: phi3 and piece not in ("<unk>", "<s>", "<|endoftext|>")


def _ends(source: VocabSource, recipe: TokenizerRecipe) -> Ends:
    bos = source.token_id("bos", "cls")
    eos = source.token_id("eos")
    sep = source.token_id("seperator", "separator")  # the first spelling is the file format's
    stated = {source.token_id(name) for name in ("eos", "eot", "eom")} - {None}
    # Some files mark tokens that end a turn as the user's: gemma-4's <|tool_response> is one.
    markers = {source.pieces[i]: i for i in source.of_kind(Kind.CONTROL, Kind.USER_DEFINED)}
    prefix = _wanted(source, "add_bos_token", recipe.add_bos, bos)
    suffix = _wanted(source, "add_eos_token", recipe.add_eos, eos)
    closing = _wanted(source, "add_sep_token", recipe.add_sep, sep)
    return Ends(
        prefix=prefix,
        # Only WordPiece closes a text with the separator; elsewhere it stands between the texts of a pair.
        suffix=suffix + (closing if recipe.add_sep else ()),
        between=suffix + closing,
        bos_id=bos,
        eos_id=eos,
        eos_ids=end_markers(markers) | {i for i in stated if i is not None},
    )


def _wanted(source: VocabSource, field: str, default: bool, token: int | None) -> tuple[int, ...]:
    if not source.flag(field, default):
        return ()
    if token is None:
        raise TokenizerError(
            f"The file asks for {KEY}{field} but names no such token: it was converted wrongly; use another file."
        )
    return (token,)
