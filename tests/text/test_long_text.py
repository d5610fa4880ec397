"""Long texts: the same tokens as in one go, other threads run meanwhile, and what cannot fit is told unread."""

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tahr.text.tokens import gguf_words
from tahr.text.tokens.long_text import LONG, parts
from tahr.text.tokens.merge import MAX_WORD, MergeModel
from tahr.text.tokens.pretokenizers import PRE_TOKENIZERS
from tahr.text.tokens.tokenizer import Tokenizer
from test_json_vocab import BYTE_LEVEL, SOUND, SPECIAL, changed
from test_tokenizer import VOCABULARIES, tokenizer_of
from tiers import examples
from tiny_vocabulary import tiny

FRAGMENTS = [
    *("hello", " world", "\n", "\n\n", "a b", " ", "  ", "\t", "\r\n", "it's", " they'LL", "HTTPServer", "camelCase"),
    *("1234567", " 3.14", "...", "!?", " (x)", "你好", "こんにちは", "한국어", "é", "e\u0301", "🚀", "ไทย", "ß", "'s"),
    *("<|im_end|>", "</s>", "<s>", "<0x0A>", "▁", "Ġ", "_x", "x_", "/", "\\n", "A", "z", "\u00a0", "\u3000", "\0"),
]
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=60).map("".join)


def with_long(n: int, work: Callable[[], Any]) -> Any:
    """What comes of work when texts of more than `n` letters are long."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("long_text", "gguf_words", "gguf_vocab", "json_parts", "special_names"):
            patch.setattr(f"tahr.text.tokens.{module}.LONG", n)
        return work()


@pytest.mark.parametrize("name", VOCABULARIES)
@settings(max_examples=examples(60), deadline=None)
@given(text=texts, n=st.integers(2, 40))
def test_the_same_tokens_as_in_one_go(name: str, text: str, n: int) -> None:
    tokenizer = tokenizer_of(name)
    ways = [tokenizer.encode, partial(tokenizer.encode, parse_special=False), tokenizer.disguise]
    for way in ways:
        assert with_long(n, partial(way, text)) == with_long(1 << 30, partial(way, text))


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@settings(max_examples=examples(40), deadline=None)
@given(text=texts, n=st.integers(2, 40))
def test_every_rule_cuts_long_texts_alike(name: str, text: str, n: int) -> None:
    row = PRE_TOKENIZERS[name]
    words = gguf_words.word_splitter(row.splits, byte_level=True, cut=row.cuts_at_words)
    assert with_long(n, lambda: words(text)) == with_long(1 << 30, lambda: words(text))


@pytest.mark.parametrize("name", VOCABULARIES)
@settings(max_examples=examples(20), deadline=None)
@given(text=texts, n=st.integers(1, 20))
def test_the_beginning_of_a_text_has_its_first_tokens(name: str, text: str, n: int) -> None:
    tokenizer, whole = tokenizer_of(name), f"{text} of words {text}\n" * 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tahr.text.tokens.tokenizer.LONG", 100)
        begun = tokenizer.beginning(whole, n)
    assert len(begun) < len(whole) / 2 or len(whole) < 6000
    assert tokenizer.encode(begun)[:n] == tokenizer.encode(whole)[:n]


def test_the_rest_of_a_text_is_not_looked_at() -> None:
    tokenizer = tokenizer_of(next(iter(VOCABULARIES)))
    began = time.thread_time()
    assert len(tokenizer.beginning("some words " * 2_000_000, 512)) < 100_000
    assert time.thread_time() - began < 0.5


def json_tokenizer(*splits: str, **changes: Any) -> Tokenizer:
    """A tokenizer.json with a token for each letter and for pairs of them, also across spaces and line breaks."""
    letters = [chr(c) for c in range(33, 0x144)]
    pairs = ["a b", "l o", "Ġ w", "lo Ġw", "o Ċ", "oĊ h", "Ċ Ċ", "t h", "s <", "< /", "d </"]
    vocab = {piece: i + 8 for i, piece in enumerate([*letters, *(pair.replace(" ", "") for pair in pairs)])}
    split = [{"type": "Split", "pattern": {"Regex": s}, "behavior": "Isolated", "invert": False} for s in splits]
    steps = [*split, BYTE_LEVEL | {"use_regex": not splits}]
    tree = {
        **SOUND,
        "model": {"type": "BPE", "vocab": vocab, "merges": pairs},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "added_tokens": [
            SPECIAL,
            SPECIAL | {"id": 1, "content": "<|im_end|>"},
            SPECIAL | {"id": 2, "content": "!?", "special": False, "normalized": True},
        ],
    }
    return Tokenizer.from_json(json.dumps(tree | changes))


NAME = SPECIAL | {"id": 3, "special": False}
JSON_TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": json_tokenizer,
    "llama3": lambda: json_tokenizer(*PRE_TOKENIZERS["llama3"].splits, normalizer={"type": "NFC"}),
    "deepseek": lambda: json_tokenizer(*PRE_TOKENIZERS["deepseek-v3"].splits),
    "lines": lambda: json_tokenizer(r"[^\n]+"),
    "joined": lambda: json_tokenizer(*PRE_TOKENIZERS["superbpe"].splits),
    "a name of two words": lambda: json_tokenizer(added_tokens=[SPECIAL, NAME | {"content": "hello world"}]),
    "a name that takes space": lambda: json_tokenizer(added_tokens=[SPECIAL | {"rstrip": True, "content": "hello"}]),
    "metaspace": lambda: json_tokenizer(
        pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    ),
}


@pytest.mark.parametrize("name", JSON_TOKENIZERS)
@settings(max_examples=examples(50), deadline=None)
@given(text=texts, n=st.integers(2, 40))
@example(text="so hello world\nhello world, hello\n", n=2)
def test_json_tokenizers_too(name: str, text: str, n: int) -> None:
    tokenizer = JSON_TOKENIZERS[name]()
    for encode in (tokenizer.encode, partial(tokenizer.encode, parse_special=False)):
        assert with_long(n, partial(encode, text)) == with_long(1 << 30, partial(encode, text))


@pytest.mark.parametrize("name", ["bytes", "llama3", "deepseek"])
def test_json_tokenizers_of_known_rules_take_long_texts_in_parts(name: str) -> None:
    calls = JSON_TOKENIZERS[name]()._vocab.parsing
    assert len([*calls("hello wide world" * 5000)]) > 5 and len([*calls("<|im_end|>" * 5000)]) == 5000


def test_parts_are_short_where_there_are_words() -> None:
    found = list(parts("some words and more\n" * 5000))
    assert "".join(found) == "some words and more\n" * 5000 and max(map(len, found)) <= 2 * LONG
    assert len(list(parts("x" * 100_000))) == 1


def test_a_word_longer_than_any_is_merged_in_parts() -> None:
    tokenizer = Tokenizer.from_gguf(tiny())
    assert tokenizer.encode("ab" * MAX_WORD, add_special=False) == tokenizer.encode("ab", add_special=False) * MAX_WORD


def test_equal_parts_of_a_long_word_are_merged_once() -> None:
    requested = 0

    def rank(left: str, right: str) -> float | None:
        nonlocal requested
        requested += 1
        return 0.0 if left + right == "aa" else None

    model = MergeModel({"a": 0, "aa": 1}, rank, unknown=lambda symbol: ())
    assert model.encode(["a" * MAX_WORD]) == [1] * (MAX_WORD // 2)
    once, requested = requested, 0
    assert model.encode(["a" * 20 * MAX_WORD + "a"]) == [1] * (10 * MAX_WORD) + [0]
    assert requested <= once, "a megabyte of spaces took as long as a megabyte of words"


# ---- other threads ----------------------------------------------------------------------------------------------


def longest_gap(work: Callable[[], object]) -> float:
    """How long another thread had to wait, at most, while work was done."""
    worst, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal worst
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            worst, last = max(worst, now - last), now

    thread = threading.Thread(target=watch)
    thread.start()
    work()
    done.set()
    thread.join()
    return worst


def encode_and_decode(tokenizer: Tokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer.encode(text))


N = 100_000
LONG_TEXTS = {
    "words": "hello wide world, this is 12 text\n" * (N // 34),
    "digits": "7" * N,
    "letters": "ab" * (N // 2),
    "special": "<|im_end|>" * (N // 10),
    "angles": "<" * N,
    "newlines": "\n" * N,
}


@pytest.mark.serial
@pytest.mark.parametrize("what", LONG_TEXTS)
def test_other_threads_run_while_a_long_text_is_encoded(what: str) -> None:
    text = LONG_TEXTS[what]
    for tokenizer in (tokenizer_of("qwen2"), Tokenizer.from_json(changed("decoder", to=BYTE_LEVEL))):
        tokenizer.encode("a", parse_special=False)
        for work in (partial(encode_and_decode, tokenizer, text), partial(tokenizer.disguise, text)):
            # The machine may be busy, now and then; a call that holds the GIL holds it every time.
            assert any(lets_others_run(work) for _ in range(4)), "one call held the GIL"


def lets_others_run(work: Callable[[], object]) -> bool:
    start = time.perf_counter()
    return longest_gap(work) < max(0.05, (time.perf_counter() - start) / 8)


# ---- what cannot fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VOCABULARIES)
@settings(max_examples=examples(60), deadline=None)
@given(text=texts)
def test_what_fits_is_never_refused(name: str, text: str) -> None:
    tokenizer = tokenizer_of(name)
    n = min(len(tokenizer.encode(text, parse_special=flag, add_special=False)) for flag in (True, False))
    assert not tokenizer.cannot_fit(text, n)


@settings(max_examples=examples(60), deadline=None)
@given(
    text=texts,
    kind=st.sampled_from([None, {"type": "NFC"}, {"type": "Strip", "strip_left": True, "strip_right": True}]),
)
def test_nor_by_json_tokenizers(text: str, kind: Any) -> None:
    letters = {"<s>", "ab", *map(chr, range(33, 0x144))}
    vocab = {letter: i for i, letter in enumerate(sorted(letters))}
    tree = {
        **SOUND,
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"]},
        "normalizer": kind,
        "added_tokens": [],
    }
    tokenizer = Tokenizer.from_json(json.dumps(tree))
    assert not tokenizer.cannot_fit(text, len(tokenizer.encode(text)))


@pytest.mark.serial
def test_what_cannot_fit_is_told_at_once() -> None:
    tokenizer = tokenizer_of("qwen2")
    most = tokenizer.max_token_bytes
    assert most is not None and most <= 256
    text = "x" * 50_000_000
    start = time.perf_counter()
    assert tokenizer.cannot_fit(text, 32_768) and time.perf_counter() - start < 0.5
    assert not tokenizer.cannot_fit(text[: 32_768 * most], 32_768)
    assert tokenizer.cannot_fit("€" * (32_768 * most // 2), 32_768)
    assert tokenizer_of("bert-bge").max_token_bytes is None and not tokenizer_of("bert-bge").cannot_fit(text, 1)


def test_released_tokenizers_have_a_bound() -> None:
    for name in ("gpt-2", "llama-bpe", "llama-spm", "qwen2"):
        assert 4 <= (tokenizer_of(name).max_token_bytes or 0) <= 512
