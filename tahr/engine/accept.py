"""The effects of a token on its sequence: its text, its end, and the facts for the next step."""

from collections.abc import Callable, Collection
from collections.abc import Sequence as ListOf

from tahr.engine.sampling.sampling_state import Sample, SampledToken, token_of
from tahr.engine.sequences.sequence import Sequence, State
from tahr.errors import TahrError
from tahr.grammar.masks import Forced, GrammarToken
from tahr.text.replies.deltas import Deltas


def run_ahead(sampled: ListOf[Sequence], host_bound: ListOf[int], void: Collection[int] = ()) -> None:
    """Let the next step use the tokens that the step just launched samples, before the host knows them.

    A sequence that is sampled is `scheduled` for all of its tokens, those in flight included. The rows `host_bound` are
    sampled on the host, so the device never knows their tokens by itself. Choices that are still to be forked run when
    their parent's step has landed, and so does a sequence with drafts, even if no more are to be made: nobody knows yet
    which are right. One without a token slot cannot be named. The samples of `void` sequences do not count.
    """
    late = set(host_bound)
    waiting = State.WAITING
    for row, seq in enumerate(sampled):
        ahead = seq.ahead
        if (
            not ahead.token_slot
            or ahead.host_bound
            or ahead.speculates
            or seq.scheduled + 1 >= seq.reply.max_length
            or seq.state is waiting
        ):
            continue
        if ahead.drafts or (late and row in late) or (void and seq.id in void):
            continue
        ahead.n_ahead += 1


def accept_token(
    seq: Sequence, sampled: int | SampledToken, now: float, is_taken: bool = False
) -> tuple[Deltas, str | None]:
    """Append a token and turn it into text: what may be shown, and why it is the last token, if it is.

    If it `is_taken` by the grammar already, the grammar's matcher is left alone.
    """
    token = token_of(sampled)
    writer = seq.reply.writer
    grammar = seq.reply.grammar
    assert writer
    seq.append(token, now)
    if grammar is not None and not is_taken:
        grammar.advance(token)
    if seq.params.logprobs is not None:
        # Where they are asked for, samples come with theirs: a bare token was forced, so nothing else was possible.
        seq.result.logprobs.append(SampledToken(sampled, 0.0) if isinstance(sampled, int) else sampled)
    if token in seq.reply.ends:
        return writer.flush(), "stop"
    deltas = writer.push(token)
    if writer.stopped:
        return deltas, "length" if writer.is_cut else "stop"
    if grammar is not None and grammar.finished:
        return deltas + writer.flush(), "stop"
    if len(seq.tokens) >= seq.reply.max_length:
        deltas += writer.flush()  # a stop string may stand in what was held back
        return deltas, "length" if writer.matched_stop is None else "stop"
    return deltas, None


def taken_by_grammars(
    sequences: ListOf[Sequence],
    tokens: ListOf[Sample],
    take: Callable[[ListOf[GrammarToken]], ListOf[Forced]],
) -> list[Forced | None]:
    """Let grammars take tokens that are accepted later; what each of these forces then, or what is wrong."""
    places = {
        place: (seq.reply.grammar, token_of(sampled), seq.params.logprobs is None)
        for place, (seq, sampled) in enumerate(zip(sequences, tokens, strict=True))
        if seq.reply.grammar is not None and not seq.result.finish_reason and not isinstance(sampled, TahrError)
    }
    taken: list[Forced | None] = [()] * len(sequences)
    for place, forced in zip(places, take(list(places.values())), strict=True):
        taken[place] = forced
    return taken


def forced_by_grammar(seq: Sequence) -> ListOf[int]:
    """The tokens that the grammar forces after the last one it took.

    A request that wants log-probabilities samples what its grammar forces one by one: only a step gives those.
    """
    grammar = seq.reply.grammar
    return grammar.forced_tokens() if grammar is not None and seq.params.logprobs is None else ()


def forced_tokens(seq: Sequence, by_grammar: ListOf[int] | None) -> ListOf[int]:
    """The tokens that must come next. Those that close a block of thinking are no question of likelihood.

    `by_grammar` are those the grammar forces, if that has been looked up.
    """
    if seq.reply.writer and seq.reply.writer.forced:
        return seq.reply.writer.forced
    return forced_by_grammar(seq) if by_grammar is None else by_grammar


def accept_forced(
    seq: Sequence, forced: ListOf[int], deltas: Deltas, now: float
) -> tuple[tuple[int, ...], Deltas, str | None]:
    """Append tokens that are forced, which need no step each: those that were appended, `deltas` and what these add to
    them, and why the last one is the last, if it is.
    """
    reason: str | None = None
    # a list: a grammar may force as many tokens as the context holds
    n_before = len(seq.tokens)
    shown = list(deltas)
    for token in forced:
        more, reason = accept_token(seq, token, now)
        shown += more
        if reason:
            break
    return tuple(seq.tokens[n_before:]), tuple(shown), reason
