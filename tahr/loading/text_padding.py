"""Texts of models that read one length alone: lower case, and filled up with a token that counts like the others."""

import re
import string
from dataclasses import dataclass
from pathlib import Path

from tahr.errors import TokenizerError
from tahr.models.parts.encoding import Encoding
from tahr.text.tokens.json_object import read_object
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.text.tokens.vocab_txt import name_of

WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class TextPadding:
    """How texts become that length."""

    n_tokens: int
    token: int
    on_left: bool = False
    words_only: bool = False  # punctuation is left out, and gaps are one space wide

    def cleaned(self, text: str) -> str:
        """The text as the model has seen others."""
        text = text.lower()
        if not self.words_only:
            return text
        return re.sub(r"\s+", " ", text.translate(WITHOUT_PUNCTUATION)).strip()

    def padded(self, tokens: list[int]) -> list[int]:
        """The tokens, and as many more as are missing."""
        more = [self.token] * (self.n_tokens - len(tokens))
        return more + tokens if self.on_left else tokens + more


def text_padding(directory: Path | None, encoding: Encoding | None, tokenizer: Tokenizer) -> TextPadding | None:
    """The padding that a checkpoint's tokenizer states; None for a model that reads texts as they are."""
    if directory is None or encoding is None or not encoding.n_padded:
        return None
    config = read_object(directory / "special_tokens_map.json", TokenizerError)
    config |= read_object(directory / "tokenizer_config.json", TokenizerError)
    name = name_of(config.get("pad_token"), "<pad>")
    if name not in tokenizer.special_ids:
        raise TokenizerError(
            f"The tokenizer has no token {name[:80]!r} to fill texts up with, which this model needs: fetch it again."
        )
    return TextPadding(
        encoding.n_padded,
        tokenizer.special_ids[name],
        on_left=config.get("padding_side") == "left",
        # The other tokenizers of such models keep punctuation, as the models have seen it.
        words_only=str(config.get("tokenizer_class", "")).startswith("SiglipTokenizer"),
    )
