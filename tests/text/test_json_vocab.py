"""tokenizer.json: what it may not do to a text, and ids that no vocabulary has."""

import copy
import json
from typing import Any

import pytest

from tahr.errors import ConfigError, TahrError, TokenizerError, printable
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.text.tokens.vocab import MAX_VOCAB

PAD = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"}
CUT = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
SPECIAL = {"id": 0, "content": "<s>", "special": True}
SPECIAL |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SOUND: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [SPECIAL],
    "normalizer": None,
    "pre_tokenizer": BYTE_LEVEL,
    "post_processor": None,
    "decoder": BYTE_LEVEL,
    "model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3}, "merges": ["a b"]},
}


def changed(*path: str | int, to: Any) -> bytes:
    """The sound file with one value replaced."""
    tree = copy.deepcopy(SOUND)
    inner = tree
    for key in path[:-1]:
        inner = inner[key]  # type: ignore[index]
    inner[path[-1]] = to  # type: ignore[index]
    return json.dumps(tree).encode()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("truncation", CUT),
        ("padding", PAD | {"strategy": {"Fixed": 50}}),
        ("padding", PAD | {"strategy": {"Fixed": 10**9}}),
        ("padding", PAD | {"strategy": "BatchLongest", "pad_to_multiple_of": 1 << 40}),
    ],
)
@pytest.mark.parametrize("parse_special", [True, False])
def test_texts_are_neither_cut_nor_padded(field: str, value: Any, parse_special: bool) -> None:
    tokenizer = Tokenizer.from_json(changed(field, to=value))
    assert tokenizer.encode("ab" * 20, parse_special=parse_special) == [3] * 20


def test_dropout_is_ignored() -> None:
    data = changed("model", to=SOUND["model"] | {"dropout": 0.9})
    for parse_special in (True, False):
        assert Tokenizer.from_json(data).encode("ab" * 50, parse_special=parse_special) == [3] * 50


@pytest.mark.parametrize("i", [-1, MAX_VOCAB, 2**32 - 1, 2**32, 10**30, 1.5, "7", None, True])
def test_ids_that_no_vocabulary_has(i: Any) -> None:
    for data in (
        changed("model", "vocab", to={"<s>": 0, "a": 1, "b": 2, "ab": i}),
        changed("added_tokens", 0, "id", to=i),
    ):
        with pytest.raises(TokenizerError, match=r"tokenizer\.json .*download it again\.$"):
            Tokenizer.from_json(data)


def test_the_largest_vocabularies_are_read() -> None:
    vocab = {"<s>": 0, "a": 1, "b": 2, "ab": 3} | {f"w{i}": i for i in range(4, 262_208)}
    tokenizer = Tokenizer.from_json(changed("model", "vocab", to=vocab))
    assert tokenizer.n_vocab == 262_208 and tokenizer.encode("abab") == [3, 3]


# ---- messages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünï 🚀\n\tx", "plain ünï 🚀\n\tx"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b31m\x07\0\r", "\\x9b31m\\x07\\x00\\r"),
        ("a\u202eb\u2066", "a\\u202eb\\u2066"),
        ("\udc80", "\\udc80"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_instead(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert str(ConfigError(text)) == shown
    shown.encode()


def test_a_message_never_quotes_a_whole_file() -> None:
    message = str(TahrError("It begins " + "x" * 10**6 + " and ends."))
    assert message.startswith("It begins") and message.endswith("and ends.") and len(message) < 2000
