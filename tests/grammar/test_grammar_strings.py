"""Masks inside strings: those that sets of tokens answer are those that trying every token gives."""

import time
from functools import cache
from typing import Any

import numpy as np
import pytest

from assets import need
from tahr.errors import GrammarError
from tahr.grammar import Grammar
from tahr.grammar.alternatives import MAX_APART, apart
from tahr.grammar.compiler import GrammarCompiler
from tahr.grammar.ecma_regex import to_rust
from tahr.grammar.json_rule import json_rule
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.weights.gguf import open_gguf

FREE = {"type": "string"}
SHORT = {"type": "string", "maxLength": 9}
WORD = {"type": "string", "pattern": "^(yes|no|maybe)$"}


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(open_gguf(need("tokenizers/ggml-vocab-qwen2.gguf")).metadata)


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer())


@cache
def plain_lengths() -> np.ndarray:
    """By token: how many characters of a JSON string it is; 0 if it is something else."""
    of = tokenizer()
    return np.array([0 if of.is_special(i) else plain_length(of.token_bytes(i)) for i in range(of.n_vocab)])


def plain_length(token: bytes) -> int:
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return 0
    return 0 if any(char in '"\\\x7f' or char < " " for char in text) else len(text)


def mask_after(schema: Any, text: str) -> np.ndarray:
    state = compiler().state(Grammar("json_schema", schema))
    for token in tokenizer().encode(text, add_special=False, parse_special=False):
        state.advance(token)
    return state.allowed(tokenizer().n_vocab)


def open_schema(**changes: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"anyOf": [FREE, WORD]}}, **changes}


@pytest.mark.parametrize("least", [0, 2])
def test_a_bounded_string_takes_the_tokens_that_fit_and_no_longer_ones(least: int) -> None:
    lengths = plain_lengths()
    is_plain = lengths > 0
    for most in range(least, 27):
        allowed = mask_after({"type": "string", "minLength": least, "maxLength": most}, '"')
        assert np.array_equal(allowed[is_plain], lengths[is_plain] <= most), most


def test_a_string_of_any_length_takes_all_plain_tokens() -> None:
    assert mask_after(FREE, '"')[plain_lengths() > 0].all()


@pytest.mark.parametrize("text", ['"', '"ye', '"may', '"Zoë ', '"yes'])
@pytest.mark.parametrize("others", [[WORD], [WORD, SHORT], [{"enum": ["maybe not", 3]}, FREE]])
def test_strings_kept_apart_allow_what_one_of_them_allows(others: list[Any], text: str) -> None:
    options = [{"type": "string", "minLength": 3, "maxLength": 12}, *others]
    each = []
    for option in options:
        try:
            each.append(mask_after(option, text))
        except GrammarError:  # not of this option
            continue
    assert np.array_equal(mask_after({"anyOf": options}, text), np.any(each, axis=0))


def test_free_strings_of_an_any_of_have_definitions_of_their_own() -> None:
    made = apart(open_schema())
    free, word = made["properties"]["a"]["anyOf"]
    assert made["$defs"] == {free["$ref"].removeprefix("#/$defs/"): FREE}
    assert word == WORD


def test_definitions_that_are_there_stay() -> None:
    made = apart(open_schema(**{"$defs": {"b": {"anyOf": [FREE, SHORT]}, "c": FREE}}))
    assert made["$defs"]["c"] == FREE
    assert len(made["$defs"]) == 5


def test_what_needs_no_parting_stays_as_it_is() -> None:
    for options in ([FREE, {"type": "integer"}], [FREE], [{"enum": ["a"]}, {"const": "b"}], "none"):
        assert apart({"anyOf": options}) == {"anyOf": options}


def test_schemas_with_names_of_their_own_are_left_alone() -> None:
    inner = {"$id": "https://example.org/inner", "anyOf": [FREE, WORD]}
    assert apart({"properties": {"a": inner}}) == {"properties": {"a": inner}}
    outer = apart({"$id": "https://example.org/outer", "anyOf": [FREE, WORD]})
    assert outer["$id"] == "https://example.org/outer"
    assert mask_after({"$id": "https://example.org/outer", "anyOf": [FREE, WORD]}, '"')[plain_lengths() > 0].all()


def test_thousands_of_alternatives_are_not_all_kept_apart() -> None:
    options = [{"type": "string", "maxLength": n} for n in range(3000)]
    made = json_rule({"anyOf": options})
    assert len(made["$defs"]) == MAX_APART
    assert made["anyOf"][MAX_APART:] == options[MAX_APART:]


@pytest.mark.parametrize(
    "nothing",
    [
        {"minLength": 3, "maxLength": 2},
        {"pattern": "^abc$", "minLength": 9},
        {"format": "date", "maxLength": 3},
        {"allOf": [{"type": "integer"}]},
        {"$ref": "#/$defs/number"},
    ],
    ids=str,
)
def test_an_alternative_that_nothing_fits_is_one_less(nothing: dict[str, Any]) -> None:
    options = [SHORT, {"type": "string", **nothing}, {"type": "null"}]
    schema = {"anyOf": options, "$defs": {"number": {"type": "integer"}}}
    for text in ("", '"', '"abcdefgh'):
        assert np.array_equal(mask_after(schema, text), mask_after({"anyOf": [SHORT, {"type": "null"}]}, text))


def test_branches_of_one_of_are_told_apart_whatever_strings_they_hold() -> None:
    several = {"anyOf": [SHORT, WORD, {"type": "string", "minLength": 4}]}
    named = {"type": "object", "properties": {"k": several}, "required": ["k"]}
    numbered = {"type": "object", "properties": {"k": {"const": 3}}, "required": ["k"]}
    assert mask_after({"oneOf": [several, {"type": "integer"}]}, '"')[plain_lengths() > 0].all()
    assert mask_after({"oneOf": [named, numbered]}, '{"k":"')[plain_lengths() > 0].all()


@pytest.mark.parametrize("kind", [5, None, {}, ["string", 5], True])
def test_types_that_are_none_are_left_to_who_says_so(kind: Any) -> None:
    options = [{"type": kind}, {"type": kind}]
    assert apart({"anyOf": options}) == {"anyOf": options}
    with pytest.raises(GrammarError):
        compiler().compile(Grammar("json_schema", {"anyOf": options}))


@pytest.mark.parametrize("definitions", [5, [], None, {"tahr.string.1": {"type": "integer"}}])
def test_definitions_that_leave_no_place_stay(definitions: Any) -> None:
    schema = {"$defs": definitions, "anyOf": [FREE, WORD]}
    assert apart(schema) == schema


def test_a_tag_may_begin_with_any_special_token() -> None:
    """Names in square brackets, as Mistral's, mean something else in a grammar."""
    metadata = dict(open_gguf(need("tokenizers/ggml-vocab-qwen2.gguf")).metadata)
    names = list(metadata["tokenizer.ggml.tokens"])
    mark = names.index("<|im_start|>")
    names[mark] = "[TOOL_CALLS]"
    mistral = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.tokens": names})
    tag = {"structures": [{"begin": "[TOOL_CALLS]", "schema": {"const": True}, "end": "."}]}
    state = GrammarCompiler(mistral).state(Grammar("structural_tag", tag))
    for token in [*mistral.encode("free text"), mark, *mistral.encode("true")]:
        state.advance(token)
    assert not state.allowed(mistral.n_vocab)[mark]
    with pytest.raises(GrammarError, match="cannot go on"):
        state.advance(mistral.encode("!")[0])


@pytest.mark.parametrize("pattern", ["[{}]", "[^{}]", "[{}", "[^-{}]"])
def test_a_class_of_a_pattern_is_read_once(pattern: str) -> None:
    """As large as a schema may be: looking back at every letter took twenty seconds."""
    n = 1 << 20
    began = time.process_time()
    assert to_rust(pattern.format("a" * n)).count("a") == n
    assert time.process_time() - began < 8
