"""How each kind of GGUF tokenizer turns plain text into ids: one builder per value of `tokenizer.ggml.model`."""

from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tahr.errors import TokenizerError
from tahr.text.tokens.gguf_source import KEY, Kind, TokenizerRecipe, VocabSource
from tahr.text.tokens.gguf_words import word_cutter, word_splitter
from tahr.text.tokens.long_text import ids_of
from tahr.text.tokens.merge import MergeModel, Rank
from tahr.text.tokens.pretokenizers import PRE_TOKENIZERS, WHOLE_LINES
from tahr.text.tokens.vocab import SPACE, byte_level, metaspace


def _listed_rank(source: VocabSource) -> Rank:
    merges = source.get("merges", ())
    if not isinstance(merges, Sequence) or isinstance(merges, str) or not len(merges):
        raise TokenizerError(f"The file lacks the field {KEY}merges: it was converted wrongly; use another file.")
    ranks = dict(zip(merges, range(len(merges)), strict=True))
    return lambda left, right: ranks.get(f"{left} {right}")


def _text_ids(source: VocabSource) -> dict[str, int]:
    """Ids that plain text may turn into: it must never grow into a control token."""
    ids = dict(zip(source.pieces, range(len(source.pieces)), strict=True))
    for i in source.of_kind(Kind.CONTROL, Kind.UNKNOWN, Kind.BYTE):
        ids.pop(source.pieces[i], None)
    return ids


def _byte_level_bpe(source: VocabSource) -> TokenizerRecipe:
    name = source.text("pre", "default")  # files older than the field were all cut this way
    if name in WHOLE_LINES:
        return _sentencepiece_bpe(source)
    row = PRE_TOKENIZERS.get(name)
    if row is None:
        raise TokenizerError(
            f"The file splits words by the rules {name!r}, which Tahr does not know: guessing would give other tokens "
            f"than the model was trained on. Known are {', '.join(sorted({*PRE_TOKENIZERS, *WHOLE_LINES}))}."
        )
    model = MergeModel(
        _text_ids(source), _listed_rank(source), whole_words=row.whole_words, unknown=_unknown_ids(source)
    )
    words = word_splitter(row.splits, byte_level=True, cut=row.cuts_at_words)
    return TokenizerRecipe(lambda text: model.encode(words(text)), byte_level, add_bos=row.add_bos)


def _unknown_ids(source: VocabSource) -> Callable[[str], Sequence[int]]:
    """The tokens of a letter that has none of its own: its bytes, else the unknown token."""
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


def _sentencepiece(source: VocabSource) -> TokenizerRecipe:
    """Llama 2, Mistral, Gemma up to 3: the pair that makes the best-scored piece merges first."""
    costs = (-source.numbers("scores", np.float32, 0.0)).tolist()
    ids = _text_ids(source)

    def rank(left: str, right: str) -> float | None:
        token = ids.get(left + right)
        return None if token is None else costs[token]

    model = MergeModel(ids, rank, unknown=_unknown_ids(source))
    words = word_cutter(ids)
    prefix = SPACE if source.flag("add_space_prefix", True) else ""

    def encode(text: str) -> list[int]:
        return model.encode(words(prefix + text.replace(" ", SPACE))) if text else []

    return TokenizerRecipe(encode, metaspace, drops_first_space=bool(prefix), add_bos=True)


def _sentencepiece_bpe(source: VocabSource) -> TokenizerRecipe:
    """Gemma 4: SentencePiece's alphabet, with the merges written out."""
    model = MergeModel(_text_ids(source), _listed_rank(source), unknown=_unknown_ids(source))
    words = word_splitter([r"[^\n]+|[\n]+"], cut=False)
    return TokenizerRecipe(lambda text: model.encode(words(text.replace(" ", SPACE))), metaspace, add_bos=True)


def _wordpiece(source: VocabSource) -> TokenizerRecipe:
    """BERT. GGUF writes `▁` before words and nothing before continuations, the library the other way round."""
    special = set(source.of_kind(Kind.CONTROL, Kind.UNKNOWN))
    ids = {
        piece if i in special else piece[1:] if piece.startswith(SPACE) else "##" + piece: i
        for i, piece in enumerate(source.pieces)
    }
    unknown = source.token_id("unknown")
    model = Tokenizer(models.WordPiece(ids, unk_token="[UNK]" if unknown is None else source.pieces[unknown]))
    lowercase = source.flag("normalizer.lowercase", True)
    model.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=source.flag("normalizer.strip_accents", lowercase)
    )
    model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return TokenizerRecipe(
        ids_of(model), metaspace, drops_first_space=True, add_bos=True, add_sep=True, keeps_text=False
    )


def _unigram(source: VocabSource) -> TokenizerRecipe:
    """T5 and its kin: the most probable segmentation."""
    scores = source.numbers("scores", np.float32, 0.0).tolist()
    hidden = set(source.of_kind(Kind.CONTROL, Kind.UNKNOWN))
    # The library would find "</s>" in plain text, so it knows control tokens under names nobody types.
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
    prefixed = source.flag("add_space_prefix", True)
    spaces = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always" if prefixed else "never")
    collapse = source.flag("remove_extra_whitespaces", True)
    model.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces]) if collapse else spaces
    return TokenizerRecipe(ids_of(model), metaspace, drops_first_space=prefixed, add_eos=True, keeps_text=False)


BUILDERS: dict[str, Callable[[VocabSource], TokenizerRecipe]] = {
    "gpt2": _byte_level_bpe,
    "llama": _sentencepiece,
    "gemma4": _sentencepiece_bpe,
    "bert": _wordpiece,
    "t5": _unigram,
}
