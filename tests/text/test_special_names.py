"""Names of special tokens in texts: all of them, the longest at each place, whatever a vocabulary calls them."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tahr.errors import TokenizerError
from tahr.text.tokens.special_names import MAX_NAME, SpecialNames
from tiers import examples

LETTERS = "ab<|1]^-"


def found_by_hand(names: list[str], text: str) -> list[tuple[int, int, int]]:
    found, at = [], 0
    while at < len(text):
        here = max((name for name in names if text.startswith(name, at)), key=len, default="")
        if here:
            found.append((at, at + len(here), names.index(here)))
        at += len(here) or 1
    return found


@settings(max_examples=examples(100))
@given(st.lists(st.text(LETTERS, min_size=1, max_size=5), unique=True, max_size=12), st.text(LETTERS, max_size=60))
def test_all_names_are_found(names: list[str], text: str) -> None:
    assert [*SpecialNames({name: i for i, name in enumerate(names)}).find(text)] == found_by_hand(names, text)


@pytest.mark.parametrize("long", [2, 3, 5])
def test_names_are_found_across_the_parts_of_a_text(long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tahr.text.tokens.special_names.LONG", long)
    names = ["<s>", "<sep>", "x", "<|end|>"]
    text = "a<s>b<sep><se>x<|end|>" * 4
    assert [*SpecialNames({name: i for i, name in enumerate(names)}).find(text)] == found_by_hand(names, text)


def test_a_name_that_ends_in_a_number_is_found_before_digits() -> None:
    names = SpecialNames({"<x1": 7, "<x12>": 8})
    assert [token for _, _, token in names.find("<x123 <x12> <x2")] == [7, 8]


def test_no_vocabulary_makes_a_text_take_long() -> None:
    nested = SpecialNames({"a" * n + "b": n for n in range(1, MAX_NAME)})
    alike = SpecialNames({f"<|{n:012d}|>": n for n in range(20_000)})
    scattered = SpecialNames({chr(0x4E00 + n) + "x": n for n in range(20_000)})
    began = time.thread_time()
    assert not [*nested.find("a" * 20_000)] and not [*alike.find("<|0" * 20_000)]
    assert [token for *_, token in scattered.find("\u4e07y\u4e05x" * 10_000)] == [5] * 10_000
    chain = SpecialNames({"bb" + "a" * n: n for n in range(MAX_NAME - 2)})  # each begins with all before it
    chained = time.thread_time()
    assert [token for *_, token in chain.find("b" * 60_000)] == [0] * 30_000
    assert not [*SpecialNames({"bb" + "a" * n: n for n in range(1, MAX_NAME - 2)}).find("b" * 60_000)]
    assert time.thread_time() - chained < 2  # 4 s, when names were tried one after the other
    assert time.thread_time() - began < 5  # 15 s for the first 3,000 letters, when one pattern had all names


def test_a_name_that_is_a_text_is_refused() -> None:
    with pytest.raises(TokenizerError, match="special token 3 has a name of 300 letters, more than 256"):
        SpecialNames({"<s>": 1, "x" * 300: 3})
