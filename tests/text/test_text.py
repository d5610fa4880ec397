"""Text as it comes: streams equal whole texts, stop strings work across every cut, and nothing is done twice."""

import time
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets import need
from tahr.errors import ConfigError
from tahr.generation.writers import DeferredTextWriter, TextWriter
from tahr.text.replies.deltas import text_of
from tahr.text.replies.stream import Detokenizer, LineLimits, StopMatcher
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.weights import open_gguf
from tiers import examples

VOCABULARIES = ("bert-bge", "gpt-2", "llama-spm")


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return Tokenizer.from_gguf(open_gguf(need(f"tokenizers/ggml-vocab-{name}.gguf")).metadata)


def streamed(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = True) -> list[str]:
    detokenizer = tokenizer.detokenizer(skip_special=skip_special)
    return [detokenizer.push(i) for i in ids] + [detokenizer.flush()]


@pytest.mark.parametrize("skip_special", [True, False])
@pytest.mark.parametrize("name", VOCABULARIES)
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_any_tokens_stream_as_they_decode(name: str, skip_special: bool, data: st.DataObject) -> None:
    # Random ids make broken UTF-8, byte tokens in a row, leading spaces and special tokens anywhere.
    tokenizer = tokenizer_of(name)
    low = st.integers(0, min(300, tokenizer.n_vocab - 1))
    ids = data.draw(st.lists(low | st.integers(0, tokenizer.n_vocab - 1), max_size=40))
    pieces = streamed(tokenizer, ids, skip_special=skip_special)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special=skip_special)


TEXTS = [
    "🙂👩‍👩‍👧 emoji!",
    "日本語と한국어。",
    "trailing punctuation...",
    " leading",
    "naïve café",
    "\n\n\ttabs",
    "",
    "?",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["gpt-2", "llama-spm"])
def test_real_text_never_shows_half_a_character(name: str, text: str) -> None:
    tokenizer = tokenizer_of(name)
    pieces = streamed(tokenizer, tokenizer.encode(text, parse_special=False))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("continuing", [True, False])
@pytest.mark.parametrize("name", VOCABULARIES)
@given(st.data())
@settings(max_examples=examples(15), deadline=None)
def test_deferred_text_is_the_text_of_a_writer(name: str, continuing: bool, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(data.draw(st.text(max_size=40))) + data.draw(st.lists(st.integers(0, 300), max_size=5))
    writer, deferred = TextWriter(tokenizer, (), continuing), DeferredTextWriter(tokenizer, continuing)
    wanted = [*(text_of(writer.push(token)) for token in ids), text_of(writer.flush())]
    begun = 0
    while begun < len(ids):
        n = data.draw(st.integers(1, len(ids) - begun))
        for token in ids[begun : begun + n]:
            assert deferred.push(token) == ()
        assert text_of(deferred.take(n)) == "".join(wanted[begun : begun + n])
        begun += n
    assert deferred.flush() == () and text_of(deferred.take(1)) == wanted[-1] and deferred.take(1) == ()


def test_an_unfinished_character_shows_only_at_the_end() -> None:
    tokenizer = tokenizer_of("llama-spm")
    first_byte = next(i for i, data in tokenizer.vocab_bytes() if data == b"\xf0")
    assert streamed(tokenizer, [first_byte]) == ["", "\ufffd"]


def test_special_tokens_neither_show_nor_take_the_first_space() -> None:
    tokenizer = tokenizer_of("llama-spm")
    ids = tokenizer.encode("Hi")
    assert tokenizer.is_special(ids[0])
    assert streamed(tokenizer, ids) == ["", "Hi", ""]
    assert "".join(streamed(tokenizer, ids, skip_special=False)) == "<s> Hi"


class CountingTokenizer:
    """Counts the work a detokenizer asks for; every token is one byte of a long emoji."""

    drops_first_space = False

    def __init__(self) -> None:
        self.n_asked = 0

    def is_special(self, token: int) -> bool:
        return token == 9

    def token_bytes(self, token: int) -> bytes:
        self.n_asked += 1
        return b"" if token == 8 else "🙂".encode()[token % 4 : token % 4 + 1]


@pytest.mark.parametrize("tokens", [[0, 1, 2, 3] * 500, [8] * 2000, [0] * 2000])
def test_work_grows_with_the_tokens_not_with_their_square(tokens: list[int]) -> None:
    counting = CountingTokenizer()
    detokenizer = Detokenizer(counting)  # type: ignore[arg-type]
    for token in tokens:
        detokenizer.push(token)
    assert counting.n_asked <= len(tokens) + len(set(tokens))
    held, _ = detokenizer._characters.getstate()
    assert len(held) <= 3  # all that is kept is the start of one character


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece) for piece in pieces) + matcher.flush()
    return shown, matcher.hit


def every_cut(text: str) -> list[list[str]]:
    pairs = [[text[:i], text[i:]] for i in range(len(text) + 1)]
    triples = [[text[:i], text[i:j], text[j:]] for i in range(len(text)) for j in range(i, len(text))]
    return [[text], list(text), *pairs, *triples]


@pytest.mark.parametrize(
    ("text", "stops", "shown", "hit"),
    [
        ("Hello END there", ["END"], "Hello ", "END"),
        ("aaab", ["aab"], "a", "aab"),
        ("abcabd!", ["abd"], "abc", "abd"),
        ("no stop here EN", ["END"], "no stop here EN", None),
        ("x</s>y", ["</s>", "s"], "x</", "s"),
        ("abc", ["abc", "b"], "a", "b"),
        ("xaby", ["ab", "b"], "x", "ab"),
        ("one\n\ntwo", ["\n\n"], "one", "\n\n"),
        ("日本語。次", ["。"], "日本語", "。"),
        ("anything", [], "anything", None),
    ],
)
def test_stop_strings_across_every_cut(text: str, stops: list[str], shown: str, hit: str | None) -> None:
    for pieces in every_cut(text):
        assert run(stops, pieces) == (shown, hit), pieces


@settings(max_examples=examples(300), deadline=None)
@given(
    text=st.text("ab", max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 12), max_size=5),
)
def test_where_pieces_are_cut_never_matters(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert run(stops, pieces) == run(stops, list(text))


@pytest.mark.serial
def test_many_stop_strings_are_found_soon() -> None:
    """A thousand long ones took two seconds for a hundred pieces of text: each was tried for each end of the text."""
    matcher = StopMatcher([f"{i:04}{'x' * 200}" for i in range(1000)])
    before = time.perf_counter()
    assert "".join(matcher.push("0999" + "x" * 50) for _ in range(100)) + matcher.flush() == ("0999" + "x" * 50) * 100
    assert matcher.push("0500" + "x" * 150) == "" and matcher.push("x" * 60) == "" and matcher.hit == "0500" + "x" * 200
    assert time.perf_counter() - before < 1


def test_text_is_held_back_only_as_long_as_it_may_be_a_stop_string() -> None:
    matcher = StopMatcher(["###"])
    assert matcher.push("a#") == "a"
    assert matcher.push("#") == ""
    assert matcher.push("b") == "##b"
    assert matcher.push("###") == "" and matcher.hit == "###"
    assert matcher.push("more") == "" and matcher.flush() == ""


def test_a_matcher_looks_only_at_new_text() -> None:
    matcher = StopMatcher(["stop!"])
    for _ in range(1000):
        matcher.push("sto")
        assert len(matcher._held) < len("stop!")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        StopMatcher(["a", ""])


# ---- limits of lines ----------------------------------------------------------------------------------------


def cut_by_lines(pieces: list[str], n_indent: int, max_s: float = 0.0, stops: tuple[str, ...] = ()) -> tuple[str, bool]:
    """What is let through, and whether a limit was reached; a piece takes a second."""
    times = iter(range(10_000))
    matcher = StopMatcher(stops, LineLimits(n_indent, max_s, lambda: float(next(times))))
    shown = "".join(map(matcher.push, pieces))
    return shown + ("" if matcher.has_ended else matcher.flush()), matcher.is_cut


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("return x\n", "return x\n"),  # the first line stands behind what was there
        ("if x:\n    y()\n\t\t\t\tz()\n  w()\n    v()", "if x:\n    y()\n\t\t\t\tz()\n"),
        ("a\n     b", "a\n     b"),
        ("a\n    \n    b", "a\n    \n    b"),
        ("a\n\n    b", "a\n"),  # an empty line is not indented
        ("a\n  ", "a\n  "),  # nothing says yet that it is too short
        ("a\nb", "a\n"),
        ("", ""),
    ],
)
def test_a_text_ends_before_a_line_with_too_little_indentation(text: str, shown: str) -> None:
    for pieces in every_cut(text):
        assert cut_by_lines(pieces, 4) == (shown, shown != text)


def test_a_text_ends_with_the_line_in_which_its_time_is_up() -> None:
    assert cut_by_lines(list("ab\ncd\nef\ngh"), 0, max_s=1.5) == ("ab\ncd\n", True)
    assert cut_by_lines(list("abcdefgh"), 0, max_s=0.5) == ("abcdefgh", False), "it has no lines"
    assert cut_by_lines(list("ab\ncd\n"), 0) == ("ab\ncd\n", False)


def test_a_stop_string_behind_a_limit_of_lines_is_not_what_ended_the_text() -> None:
    assert cut_by_lines(["a\nb END c"], 4, stops=("END",)) == ("a\n", True)
    assert cut_by_lines(["a\n    b END c\nd"], 4, stops=("END",)) == ("a\n    b ", False)
