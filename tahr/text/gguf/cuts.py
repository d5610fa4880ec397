"""Rules by which a vocabulary cuts words, found by cutting a text."""

import json
from typing import Any

from tokenizers import Regex, Tokenizer, pre_tokenizers

from tahr.errors import TokenizerError
from tahr.text.tokens.pretokenizers import PRE_TOKENIZERS, PreTokenizer

# Text on which vocabularies that cut words differently do differ.
PROBE = (
    "Hello, world! I'm sure we've GOT 1234567 apples, they'Ll cost 3.14€ each…\n\n\n  indented\tcode: x_1 += f(a);\r\n"
    "naïve café Größe ŽLUŤOUČKÝ ВЕСНА 你好，世界 こんにちは 한국어 ไทย 🚀🎉 ½ ² ５ ٣   trailing  spaces   \n "
    "camelCaseWord HTTPServer's"
)

# The usual name of rules that have several names.
USUAL = ("qwen2", "llama-bpe", "smollm", "gpt-2", "tekken", "gpt-4o", "deepseek-v3")


def cuts_named(tree: dict[str, Any]) -> str:
    """The name of the rules by which this vocabulary cuts words, found by cutting a text both ways."""
    theirs = words_of(without_words(tree).pre_tokenizer)
    whole_words = bool(tree["model"].get("ignore_merges"))
    for name in (*USUAL, *PRE_TOKENIZERS):
        row = PRE_TOKENIZERS[name]
        if row.whole_words == whole_words and words_of(cutter(row)) == theirs:
            return name
    raise TokenizerError(
        "tokenizer.json cuts words by rules that no GGUF name stands for, so the model would read other tokens than "
        "it was trained on. Run the checkpoint as it is."
    )


def cutter(row: PreTokenizer) -> Any:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in row.splits]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def words_of(pre_tokenizer: Any, text: str = PROBE) -> list[str]:
    return [word for word, _ in pre_tokenizer.pre_tokenize_str(text)]


def without_words(tree: dict[str, Any]) -> Any:
    """The rules of a tokenizer.json without its vocabulary, which takes long to read."""
    rules = {**tree, "added_tokens": [], "post_processor": None}
    return Tokenizer.from_str(json.dumps({**rules, "model": {"type": "BPE", "vocab": {}, "merges": []}}))
