"""Drafts of requests with grammars: filtered by the mask, and the replies are those without drafts."""

from collections.abc import Sequence as ListOf

import pytest

from assets import stories
from engines import engine, run
from speculating import speculating
from tahr.engine.sequences.draft_state import DraftState
from tahr.engine.step.draft_grammars import cut_drafts
from tahr.grammar import Grammar
from test_grammar import PERSON, hot, submit, tokenizer

GRAMMARS = {
    "words": Grammar("regex", "([a-z]{1,6} ){12}[a-z]+\\."),
    "repeats": Grammar("regex", "(ab(cd|ef)){3,12}x?"),  # after some tokens others are forced
    "json": Grammar("json_schema", PERSON),
    "none": None,
}
CASES = [("words", 1, None), ("repeats", 1, None), ("json", 1, None), ("json", 2, 1), ("none", 1, None)]


def replies(kind: str | None, late: bool = False, texts: ListOf[list[int]] = ()) -> tuple[list[list[int]], int]:
    """What is written by all grammars in one batch, and how many drafts were right."""
    eng = speculating(stories(), kind, 4, late=late, texts=texts) if kind else engine(stories(), page_size=8)
    seqs = [
        submit(eng, hot(GRAMMARS[grammar], seed, logprobs=logprobs, temperature=0.8, max_tokens=28))
        for grammar, seed, logprobs in CASES
    ]
    written = run(eng, *seqs)
    assert [str(seq.result.error) for seq in seqs if seq.result.error] == []
    return written, eng.speculator.stats.n_accepted_tokens if eng.speculator else 0


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    return replies(None)[0]


@pytest.mark.parametrize(
    ("kind", "late"), [("ngram", False), ("ngram", True), ("itself", True), ("wrong", False), ("script", False)]
)
def test_replies_are_those_without_drafts(wanted: list[list[int]], kind: str, late: bool) -> None:
    prompt = tokenizer().encode("Once upon a time")
    written, n_accepted = replies(kind, late, [prompt + reply for reply in wanted])
    assert written == wanted
    assert n_accepted or kind == "wrong"


def test_drafts_end_before_what_the_grammar_forbids_or_forces() -> None:
    eng = speculating(stories(), "wrong", 4)
    known = {tokenizer().token_bytes(token): token for token in reversed(range(tokenizer().n_vocab))}
    a, b, c, d, z = (known[letter.encode()] for letter in "abcdz")
    for pattern, drafts, kept in (
        ("[a-f]{8}", [a, b, z, c], [a, b]),  # z is forbidden
        ("[ab][ab]cd[ef]{5}", [a, b, c, d], [a]),  # after b, "cd" is forced
        ("[ab]{2,3}", [a, b, a, b], [a, b]),  # after three letters the text is complete
    ):
        seq = submit(eng, hot(Grammar("regex", pattern)))
        seq.ahead.draft_state = DraftState(0.5)
        seq.set_drafts(drafts)
        cut_drafts(seq)
        assert list(seq.ahead.drafts) == kept, pattern
        assert all(state.matcher is not seq.reply.request.grammar.matcher for state in seq.ahead.draft_state.grammars)  # type: ignore[union-attr]
