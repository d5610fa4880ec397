"""Words of a text, within which GGUF tokenizers merge."""

import re
from collections.abc import Callable, Iterable

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from tahr.text.tokens.long_text import LONG, encoding, parts, spans
from tahr.text.tokens.vocab import SPACE, to_byte_level


def word_splitter(patterns: Iterable[str], *, byte_level: bool = False, cut: bool = True) -> Callable[[str], list[str]]:
    """Splits texts into words; long texts first into parts, unless words may reach across."""
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    spelt = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)] if byte_level else []
    rules = pre_tokenizers.Sequence([*splits, *spelt])
    by_batch = Tokenizer(models.WordLevel({"": 0}, unk_token=""))  # slower, but releases the GIL
    by_batch.pre_tokenizer = pre_tokenizers.Sequence(splits)

    def words(text: str) -> list[str]:
        if len(text) <= 2 * LONG:
            return [word for word, _ in rules.pre_tokenize_str(text)]
        cuts = [text[start:end] for start, end in spans(encoding(by_batch, text))]
        return [to_byte_level(word) for word in cuts] if byte_level else cuts

    def words_of_parts(text: str) -> list[str]:
        return words(text) if len(text) <= LONG else [word for part in parts(text) for word in words(part)]

    return words_of_parts if cut else words


def word_cutter(pieces: Iterable[str]) -> Callable[[str], list[str]]:
    """Cuts before a space unless a piece runs across: there merging cannot see past the cut, and words come again."""
    joined = set(re.findall(f"([^{SPACE}\\0]){SPACE}", "\0".join(pieces)))
    before_word = re.compile(f"(?<=[^{SPACE}{re.escape(''.join(joined))}])(?={SPACE})")
    return lambda text: [word for part in parts(text, before_word) for word in before_word.split(part)]
