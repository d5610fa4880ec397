"""GBNF: what it means is kept, whichever way a grammar is translated."""

import random
from time import process_time
from typing import Any

import pytest

from tahr.errors import GrammarError
from tahr.grammar.gbnf import translation as gbnf
from tahr.grammar.gbnf.parser import parse, references

llguidance = pytest.importorskip("llguidance")

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws   # escapes
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
NESTED = 'root ::= x\nx ::= "a" "b" "c" | "ab" "d" | "(" x ")"'  # greedy terminals would lose "abc"


def matcher(lark: str) -> Any:
    made = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), lark, log_level=0)
    assert not made.get_error()
    return made


def accepts(lark: str, text: str) -> bool:
    tried, data = matcher(lark), list(text.encode())
    return tried.try_consume_tokens(data) == len(data) and tried.is_accepting()


CASES = {
    JSON: (['{"a":1}', '{"a": [1,2,{"b":"x\\n\\u00e9é"}]}', "{}", '{"a":-1.5e+3}'], ['{"a":}', "{", "[]", '{"a":01}']),
    NESTED: (["abc", "abd", "((abc))"], ["ab", "abcd", "(abc"]),
    'root ::= [a-z]* "b" r?\nr ::= "x" r | ""': (["b", "aab", "bbb", "bxx"], ["a", ""]),
    'root ::= ("a"\n | "b") | \n "c"\n  | "d"\n': (list("abcd"), ["e", "ab"]),
    "root ::= . [^\\n]{2,3} [\\]\\-a-]": (["éab]", "éaba", "\nab-"], ["a\n-"]),
    'root ::= ""': ([""], ["a"]),
    'root ::= "\\u00e9" "\\x41" "\\U0001F600"': (["éA😀"], ["é"]),
}


@pytest.mark.parametrize("source", CASES, ids=[source[:30].strip() for source in CASES])
def test_texts_of_the_language_and_no_others_are_accepted(source: str) -> None:
    good, bad = CASES[source]
    lark = gbnf.to_lark(source)
    assert all(accepts(lark, text) for text in good)
    assert not any(accepts(lark, text) for text in bad)


def test_terminals_are_used_only_where_they_lose_nothing() -> None:
    assert "T_0:" in gbnf.to_lark(JSON) and "T_0:" not in gbnf.to_lark(NESTED)


WRONG = {
    "no rule root": 'a ::= "b"',
    "not defined": "root ::= b",
    "defined twice": 'root ::= "a"\nroot ::= "b"',
    "out of place": "root ::= &",
    "is missing": 'root ::= ("a"',
    "the rest of a text": 'root ::= "a',
    "is empty": "root ::= []",
    "ends before it begins": "root ::= [z-a]",
    "repetition": 'root ::= "a"{3,2}',
    "no escape": 'root ::= "\\q"',
    "number of no character": 'root ::= "\\uD800"',
    "nested more than": "root ::= " + "(" * 99 + '"a"' + ")" * 99,
    "the name of a rule": "::= 5",
    "times over": 'root ::= "a"***',
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_is_said_with_its_line(words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        gbnf.to_lark(WRONG[words])


def chain(n: int, last: str) -> str:
    return "\n".join([*(f"r{i} ::= r{i + 1}" for i in range(n)), f"r{n} ::= {last}", "root ::= r0"])


def test_chained_rules_are_read_in_a_time_that_grows_with_their_number() -> None:
    """Neither recursion nor a look at all rules for each rule, whether they end in a text or in themselves."""
    assert gbnf.to_lark(chain(20_000, '"ab"')) == "start: /ab/\n"

    def seconds(n: int) -> float:
        began = process_time()
        gbnf.to_lark(chain(n, '"a" | "(" root ")"'))
        return process_time() - began

    small = min(seconds(1_000) for _ in range(3))
    assert min(seconds(16_000) for _ in range(2)) < 80 * max(small, 0.02), "16 times the rules, not 256 times the time"


LARGE = {
    "doubling": "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(20)) + '\nr20 ::= "a"\nroot ::= r0',
    "doubling alternatives": "\n".join(f"r{i} ::= r{i + 1} | r{i + 1}" for i in range(40))
    + '\nr40 ::= "a"\nroot ::= r0 | "(" root ")"',
    "long": "root ::= " + " | ".join(f'"word{i}"' for i in range(30_000)),
    "long and recursive": "root ::= " + " | ".join(f'"word{i}"' for i in range(30_000)) + ' | "(" root ")"',
}


@pytest.mark.parametrize("name", LARGE)
def test_what_is_too_long_written_out_is_not_expanded(name: str) -> None:
    began = process_time()
    lark = gbnf.to_lark(LARGE[name])
    assert process_time() - began < 10 and "r_0: " in lark
    assert len(lark) < 40 * len(LARGE[name]), "nothing is lost, nor multiplied"
    assert len(lark) > len(LARGE[name])


def test_alternatives_that_fit_into_one_expression_become_one() -> None:
    lark = gbnf.to_lark("root ::= " + " | ".join(f'"word{i}"' for i in range(9_000)))
    assert accepts(lark, "word8999") and not accepts(lark, "word9000") and not accepts(lark, "")


def random_rule(rng: random.Random, letters: str) -> str:
    """Alternatives that begin with letters of their own; what follows may or may not be decided by one character."""
    plain = ['"x"', "[xy]", "[x-z]*", '("x" | "xy")', '("x" "y")?', '[^;]+ ";"', '"z"{1,3}', "root", "deep", "flat", ""]
    branches = []
    for letter in rng.sample(letters, rng.randint(1, 3)):
        rest = [rng.choice(plain) for _ in range(rng.randint(0, 2))]
        repeated = f'("{rng.choice(letters)}" {rng.choice(plain)}){rng.choice("*+?")}' if rng.random() < 0.4 else ""
        branches.append(" ".join([f'"{letter}"', *rest, repeated, '"."']))
    return " | ".join(branches)


def test_both_translations_mean_the_same() -> None:
    """Terminals against single characters, on random grammars and random texts: the masks are equal all the way."""
    n_compared = 0
    for seed in range(40):
        rng = random.Random(seed)
        root, deep = random_rule(rng, "abc"), random_rule(rng, "def")
        rules = parse(f'root ::= {root} | "r" root\ndeep ::= {deep} | "(" deep ")"\nflat ::= [g-i]+ "j"?\n')
        order = gbnf.leaves_first({name: references(node) for name, node in rules.items()})
        recursive = rules.keys() - set(order)
        lark = gbnf.with_terminals(rules, recursive, gbnf.Expansion(rules, order)) if "root" in recursive else None
        if lark is None:
            continue
        n_compared += 1
        for walk in range(2):
            one, other = matcher(lark), matcher(gbnf.by_characters(rules))
            choose = random.Random(walk).choice
            for _ in range(8):
                assert one.compute_bitmask() == other.compute_bitmask() and one.is_accepting() == other.is_accepting()
                mask = one.compute_bitmask()
                allowed = [at for at in range(128) if mask[at // 8] >> at % 8 & 1]
                if not allowed or one.is_stopped():
                    break
                token = choose(allowed)
                one.consume_token(token)
                other.consume_token(token)
    assert n_compared > 5
