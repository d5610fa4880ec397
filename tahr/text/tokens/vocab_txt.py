"""BERT's older vocabularies: a list of pieces, vocab.txt, and a few switches, made a tokenizer.json."""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from tahr.errors import TokenizerError
from tahr.text.tokens.vocab import MAX_VOCAB

SPECIAL = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}


def tokenizer_json(data: bytes, config: Mapping[str, Any]) -> str:
    """The tokenizer.json of a vocab.txt and of the tokenizer_config.json beside it."""
    try:
        pieces = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise TokenizerError("vocab.txt is no UTF-8: download it again.") from error
    if len(pieces) > MAX_VOCAB:
        raise TokenizerError(f"vocab.txt has more than {MAX_VOCAB} pieces: download it again.")
    vocab = {piece: i for i, piece in enumerate(pieces)}
    names = {kind: name_of(config.get(f"{kind}_token"), usual) for kind, usual in SPECIAL.items()}
    missing = [names[kind] for kind in ("unk", "cls", "sep") if names[kind] not in vocab]
    if missing:
        raise TokenizerError(f"vocab.txt lacks {', '.join(missing)[:200]}, so it is not BERT's: download it again.")
    made = Tokenizer(models.WordPiece(vocab, unk_token=names["unk"]))
    made.add_special_tokens([AddedToken(name, special=True) for name in names.values() if name in vocab])
    made.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=config.get("tokenize_chinese_chars", True) is True,
        strip_accents=config.get("strip_accents") if isinstance(config.get("strip_accents"), bool) else None,
        lowercase=config.get("do_lower_case", True) is True,
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first = names["cls"]
    last = names["sep"]
    made.post_processor = processors.BertProcessing((last, vocab[last]), (first, vocab[first]))
    text: str = made.to_str()
    return text


def name_of(stated: Any, usual: str) -> str:
    """The name of a special token, which files state as a text or as an object."""
    name = stated.get("content") if isinstance(stated, Mapping) else stated
    return name if isinstance(name, str) and name else usual
