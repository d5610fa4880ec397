"""Vocabularies from GGUF metadata (`tokenizer.ggml.*`): one builder per value of `tokenizer.ggml.model`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from ..errors import TokenizerError
from .merge import MergeModel, Rank
from .pretokenizers import PRE_TOKENIZERS
from .vocab import SPACE, Ends, Vocab, byte_level, end_markers, metaspace

KEY = "tokenizer.ggml."


class Kind(IntEnum):
    """What `tokenizer.ggml.token_type` says of a token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Source:
    """The checked arrays of a file's vocabulary, with the rest of its metadata."""

    metadata: Mapping[str, Any]
    pieces: list[str]
    kinds: NDArray[np.int32]

    def get(self, name: str, default: Any = None) -> Any:
        return self.metadata.get(KEY + name, default)

    def of_kind(self, *kinds: Kind) -> list[int]:
        found: list[int] = np.flatnonzero(np.isin(self.kinds, kinds)).tolist()
        return found

    def token_id(self, *names: str) -> int | None:
        """The first of these `..._token_id` fields that the file has."""
        for name in names:
            value = self.get(f"{name}_token_id")
            if value is None:
                continue
            if not 0 <= int(value) < len(self.pieces):
                raise TokenizerError(
                    f"The file says {KEY}{name}_token_id is {value}, but its vocabulary has {len(self.pieces)} tokens: "
                    "it is damaged or was converted wrongly; download it again."
                )
            return int(value)
        return None


@dataclass(frozen=True)
class Recipe:
    """What a builder decides: how a stretch of plain text becomes ids, and how pieces read."""

    encode: Callable[[str], list[int]]
    alphabet: Callable[[str], bytes]
    drops_first_space: bool = False
    add_bos: bool = False  # these three hold where the file does not say
    add_eos: bool = False
    add_sep: bool = False


def read_gguf(metadata: Mapping[str, Any]) -> Vocab:
    """The vocabulary a GGUF file carries."""
    source = _source(metadata)
    build = _BUILDERS.get(source.get("model"))
    if build is None:
        raise TokenizerError(
            f"The file's tokenizer is of the kind {source.get('model')!r}, and Tahr knows {', '.join(_BUILDERS)}: "
            "use another file of this model, or its Hugging Face form with tokenizer.json."
        )
    try:
        return _vocab(source, build(source))
    except TokenizerError:
        raise
    except Exception as error:  # the library raises bare Exception for a merge that names no token, and the like
        raise TokenizerError(f"The file's tokenizer cannot be built ({error}): download it again.") from error


def _source(metadata: Mapping[str, Any]) -> Source:
    if KEY + "model" not in metadata or not len(metadata.get(KEY + "tokens", ())):
        raise TokenizerError("The file carries no tokenizer: use a file that has one, or the model's tokenizer.json.")
    pieces = list(metadata[KEY + "tokens"])
    if set(map(type, pieces)) != {str}:
        raise TokenizerError(f"The field {KEY}tokens holds more than strings: the file is damaged; download it again.")
    return Source(metadata, pieces, _array(metadata, "token_type", len(pieces), np.int32, Kind.NORMAL))


def _array(metadata: Mapping[str, Any], name: str, n: int, dtype: Any, default: float) -> NDArray[Any]:
    if KEY + name not in metadata:
        return np.full(n, default, dtype)
    values = np.asarray(metadata[KEY + name], dtype)
    if values.shape != (n,):
        raise TokenizerError(
            f"The file has {n} tokens but {values.size} entries in {KEY}{name}: it is damaged; download it again."
        )
    return values


def _vocab(source: Source, recipe: Recipe) -> Vocab:
    special = source.of_kind(Kind.CONTROL, Kind.UNKNOWN)
    named = source.of_kind(Kind.USER_DEFINED)
    return Vocab(
        parsing=_around(source, special + named, recipe.encode),
        plain=_around(source, named, recipe.encode),
        pieces=source.pieces,
        special=frozenset(special),
        literal=frozenset(special + named),
        alphabet=recipe.alphabet,
        drops_first_space=recipe.drops_first_space,
        ends=_ends(source, recipe),
    )


def _around(source: Source, added: list[int], encode: Callable[[str], list[int]]) -> Callable[[str], list[int]]:
    """An encoder that finds the added tokens in a text and leaves the stretches between them to `encode`."""
    if not added:
        return encode
    between = len(source.pieces)  # an id no token has
    ids = {source.pieces[i]: i for i in added}
    finder = Tokenizer(models.WordLevel(ids | {"": between}, unk_token=""))
    swallows = _swallows_space(source)
    finder.add_tokens([AddedToken(piece, normalized=False, rstrip=swallows(piece)) for piece in ids if piece])

    def split_and_encode(text: str) -> list[int]:
        found = finder.encode(text, add_special_tokens=False)
        out: list[int] = []
        for token, (start, end) in zip(found.ids, found.offsets, strict=True):
            out += encode(text[start:end]) if token == between else (token,)
        return out

    return split_and_encode


def _swallows_space(source: Source) -> Callable[[str], bool]:
    # Phi-3's markers eat the white space after them, which GGUF has no field for.
    name = str(source.metadata.get("general.name", "")).lower()
    phi3 = "phi-3" in name or "phi3" in name
    return lambda piece: phi3 and piece not in ("<unk>", "<s>", "<|endoftext|>")


def _ends(source: Source, recipe: Recipe) -> Ends:
    bos = source.token_id("bos", "cls")
    eos = source.token_id("eos")
    sep = source.token_id("seperator", "separator")  # the first spelling is the file format's
    stated = {source.token_id(name) for name in ("eos", "eot", "eom")} - {None}
    control = {source.pieces[i]: i for i in source.of_kind(Kind.CONTROL)}
    prefix = _wanted(source, "add_bos_token", recipe.add_bos, bos)
    suffix = _wanted(source, "add_eos_token", recipe.add_eos, eos)
    return Ends(
        prefix=prefix,
        suffix=suffix + _wanted(source, "add_sep_token", recipe.add_sep, sep),
        bos_id=bos,
        eos_id=eos,
        eos_ids=end_markers(control) | {i for i in stated if i is not None},
    )


def _wanted(source: Source, field: str, default: bool, token: int | None) -> tuple[int, ...]:
    if not source.get(field, default):
        return ()
    if token is None:
        raise TokenizerError(
            f"The file asks for {KEY}{field} but names no such token: it was converted wrongly; use another file."
        )
    return (token,)


def _words(*steps: Any) -> Callable[[str], list[str]]:
    cut = pre_tokenizers.Sequence(list(steps)).pre_tokenize_str
    return lambda text: [word for word, _ in cut(text)]


def _split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _listed_rank(source: Source) -> Rank:
    merges = source.get("merges", ())
    if not len(merges):
        raise TokenizerError(f"The file lacks the field {KEY}merges: it was converted wrongly; use another file.")
    ranks = dict(zip(merges, range(len(merges)), strict=True))
    return lambda left, right: ranks.get(f"{left} {right}")


def _text_ids(source: Source) -> dict[str, int]:
    """Ids that plain text may turn into: it must never grow into a control token."""
    ids = dict(zip(source.pieces, range(len(source.pieces)), strict=True))
    for i in source.of_kind(Kind.CONTROL, Kind.UNKNOWN, Kind.BYTE):
        ids.pop(source.pieces[i], None)
    return ids


def _byte_level_bpe(source: Source) -> Recipe:
    name = source.get("pre", "default")
    row = PRE_TOKENIZERS.get(name)
    if row is None:
        raise TokenizerError(
            f"The file splits words by the rules {name!r}, which Tahr does not know: guessing would give other tokens "
            f"than the model was trained on. Known are {', '.join(sorted(PRE_TOKENIZERS))}."
        )
    model = MergeModel(
        _text_ids(source), _listed_rank(source), whole_words=row.whole_words, unknown=_unknown_ids(source)
    )
    words = _words(*map(_split, row.splits), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return Recipe(lambda text: model.encode(words(text)), byte_level, add_bos=row.add_bos)


def _unknown_ids(source: Source) -> Callable[[str], Sequence[int]]:
    """What a letter without a token of its own becomes: its bytes, else the unknown token."""
    of_byte = {source.pieces[i]: i for i in source.of_kind(Kind.BYTE)}
    unknown = source.token_id("unknown")

    def ids(letter: str) -> Sequence[int]:
        found = [of_byte.get(f"<0x{byte:02X}>") for byte in letter.encode()]
        if None not in found:
            return [i for i in found if i is not None]
        if unknown is None:
            raise TokenizerError(f"The vocabulary has no token for {letter!r}: this model cannot read that text.")
        return (unknown,)

    return ids


def _sentencepiece(source: Source) -> Recipe:
    """Llama 2, Mistral, Gemma up to 3: the pair that makes the best-scored piece merges first."""
    costs = (-_array(source.metadata, "scores", len(source.pieces), np.float32, 0.0)).tolist()
    ids = _text_ids(source)

    def rank(left: str, right: str) -> float | None:
        token = ids.get(left + right)
        return None if token is None else costs[token]

    model = MergeModel(ids, rank, unknown=_unknown_ids(source))
    words = _word_cutter(ids)
    prefix = SPACE if source.get("add_space_prefix", True) else ""

    def encode(text: str) -> list[int]:
        return model.encode(words(prefix + text.replace(" ", SPACE))) if text else []

    return Recipe(encode, metaspace, drops_first_space=bool(prefix), add_bos=True)


def _word_cutter(pieces: Iterable[str]) -> Callable[[str], list[str]]:
    """Cuts before a space unless a piece runs across: there merging cannot see past the cut, and words come again."""
    joined = set(re.findall(f"([^{SPACE}\\0]){SPACE}", "\0".join(pieces)))
    return re.compile(f"(?<=[^{SPACE}{re.escape(''.join(joined))}])(?={SPACE})").split


def _sentencepiece_bpe(source: Source) -> Recipe:
    """Gemma 4: SentencePiece's alphabet, with the merges written out."""
    model = MergeModel(_text_ids(source), _listed_rank(source), unknown=_unknown_ids(source))
    words = _words(_split(r"[^\n]+|[\n]+"))
    return Recipe(lambda text: model.encode(words(text.replace(" ", SPACE))), metaspace, add_bos=True)


def _wordpiece(source: Source) -> Recipe:
    """BERT. GGUF writes `▁` before words and nothing before continuations, the library the other way round."""
    special = set(source.of_kind(Kind.CONTROL, Kind.UNKNOWN))
    ids = {
        piece if i in special else piece[1:] if piece.startswith(SPACE) else "##" + piece: i
        for i, piece in enumerate(source.pieces)
    }
    unknown = source.token_id("unknown")
    model = Tokenizer(models.WordPiece(ids, unk_token="[UNK]" if unknown is None else source.pieces[unknown]))
    lowercase = bool(source.get("normalizer.lowercase", True))
    model.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=bool(source.get("normalizer.strip_accents", lowercase))
    )
    model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return Recipe(_ids_of(model), metaspace, drops_first_space=True, add_bos=True, add_sep=True)


def _unigram(source: Source) -> Recipe:
    """T5 and its kin: the most probable segmentation."""
    scores = _array(source.metadata, "scores", len(source.pieces), np.float32, 0.0).tolist()
    hidden = set(source.of_kind(Kind.CONTROL, Kind.UNKNOWN))
    # It would find "</s>" in plain text, so it knows control tokens under names nobody types.
    pieces = [f"\ufdd0{i}" if i in hidden else piece for i, piece in enumerate(source.pieces)]
    model = Tokenizer(
        models.Unigram(
            list(zip(pieces, scores, strict=True)),
            unk_id=source.token_id("unknown"),
            byte_fallback=bool(source.of_kind(Kind.BYTE)),
        )
    )
    charsmap = bytes(np.asarray(source.get("precompiled_charsmap", ()), np.int64).astype(np.uint8))
    if charsmap:
        model.normalizer = normalizers.Precompiled(charsmap)
    prefixed = bool(source.get("add_space_prefix", True))
    spaces = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always" if prefixed else "never")
    collapse = bool(source.get("remove_extra_whitespaces", True))
    model.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces]) if collapse else spaces
    return Recipe(_ids_of(model), metaspace, drops_first_space=prefixed, add_eos=True)


def _ids_of(model: Any) -> Callable[[str], list[int]]:
    def encode(text: str) -> list[int]:
        ids: list[int] = model.encode(text, add_special_tokens=False).ids
        return ids

    return encode


_BUILDERS: dict[str, Callable[[Source], Recipe]] = {
    "gpt2": _byte_level_bpe,
    "llama": _sentencepiece,
    "gemma4": _sentencepiece_bpe,
    "bert": _wordpiece,
    "t5": _unigram,
}
