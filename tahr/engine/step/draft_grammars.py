"""Drafts of sequences with a grammar: each is checked before it is verified, and no draft comes before forced tokens.

A row is sampled under the mask of the grammar after the drafts before it. Tokens that a grammar forces are appended
without being sampled, so what follows a draft after which it forces some cannot be verified in the same step.
"""

from tahr.engine.sequences.sequence import Sequence
from tahr.errors import GrammarError
from tahr.grammar.state import GrammarState


def grammar_after(seq: Sequence, n: int) -> GrammarState | None:
    """Where the grammar of a sequence stands after its first n drafts. Raises `GrammarError` if it forbids one."""
    state = seq.reply.grammar
    if state is None or not n:
        return state
    assert seq.ahead.draft_state
    known = seq.ahead.draft_state.grammars
    while len(known) < n:
        following = (known[-1] if known else state).fork()
        following.advance(seq.ahead.drafts[len(known)])
        known.append(following)
    return known[n - 1]


def forget(seq: Sequence) -> None:
    """Its drafts are about to be others."""
    if seq.ahead.draft_state:
        seq.ahead.draft_state.grammars.clear()


def cut_drafts(seq: Sequence) -> None:
    """Keep the drafts that the grammar allows, up to one after which the text ends or tokens are forced."""
    n = 0
    while n < len(seq.ahead.drafts) and leaves_choice(seq, n + 1):
        n += 1
    seq.set_drafts(seq.ahead.drafts[:n])


def leaves_choice(seq: Sequence, n: int) -> bool:
    """Whether the token after the first n drafts is sampled."""
    try:
        state = grammar_after(seq, n)
    except GrammarError:
        return False
    if state is None:
        return True
    return not state.finished and (seq.params.logprobs is not None or not state.forced_tokens())
