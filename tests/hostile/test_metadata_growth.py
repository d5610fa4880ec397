"""Rules of a tokenizer.json that make a long text of a short one: refused before the library takes memory for it."""

import json
import time
from typing import Any

import pytest

from tahr.errors import TokenizerError
from tahr.text.tokens.tokenizer import Tokenizer

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SOUND: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "b"}]},
    "pre_tokenizer": BYTES,
    "post_processor": None,
    "decoder": BYTES,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
}
LONGER = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
MANY = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "a", "type_id": 0}}] * 1000 + [{"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"a": {"id": "a", "ids": [0] * 1000, "tokens": ["a"] * 1000}},
}
ATTACKS: dict[str, dict[str, Any]] = {
    "replacements of replacements": {"normalizer": {"type": "Sequence", "normalizers": [LONGER] * 2}},
    "tokens around a text": {"post_processor": MANY},
    "tokens in a sequence": {"post_processor": {"type": "Sequence", "processors": [BYTES, MANY]}},
}


@pytest.mark.parametrize("name", ATTACKS)
def test_growth_is_refused(name: str) -> None:
    start = time.process_time()
    with pytest.raises(TokenizerError, match="many times longer"):
        Tokenizer.from_json(json.dumps(SOUND | ATTACKS[name]))
    assert time.process_time() - start < 2


def test_the_sound_tokenizer_works() -> None:
    assert Tokenizer.from_json(json.dumps(SOUND)).encode("ab") == [1, 0, 1]
