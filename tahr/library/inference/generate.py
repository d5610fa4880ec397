"""Samples and feeds token after token in a session: a reply made step by step in the caller's hands."""

from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from time import perf_counter

from tahr.backends.api import Floats
from tahr.config import SamplingParams
from tahr.engine.accept import accept_token
from tahr.engine.sampling.sampling_state import SampleRequest, SamplingState
from tahr.engine.sequences.parts import ReplyState
from tahr.engine.sequences.sequence import Sequence
from tahr.errors import ConfigError, TahrError
from tahr.generation.writers import TextWriter, has_text, line_limits
from tahr.grammar.state import GrammarState
from tahr.library.inference.session import Session
from tahr.loading.builder import breakers
from tahr.text.replies.deltas import text_of
from tahr.text.tokens.tokenizer import Tokenizer


def open_reply(
    params: SamplingParams,
    tokenizer: Tokenizer,
    prompt: ListOf[int],
    max_tokens: int,
    grammar: GrammarState | None = None,
) -> Sequence:
    """A reply that has no tokens yet; it ends by the same rules as any sequence of an engine."""
    tokens = list(prompt)
    ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else tokenizer.eos_ids)
    sampling = SamplingState(params, ends, breakers(tokenizer))
    sampling.check(tokenizer.n_vocab)
    is_bound = grammar is not None and grammar.active
    continuing = is_bound or has_text(tokenizer, prompt)
    writer = TextWriter(tokenizer, params.stop, continuing, line_limits(params))
    request = SampleRequest(sampling, tokens, len(tokens), grammar)
    return Sequence(tokens, params, ReplyState(len(tokens) + max_tokens, writer, request, ends))


def decode(session: Session, logits: Floats, reply: Sequence) -> Iterator[str]:
    """The text of each sampled token (it may be empty), until the reply ends or has as many as it may.

    The session needs memory for one fewer: the last token is never fed.
    """
    request = reply.reply.request
    assert request
    text = session.sequence
    n_tokens = session.length
    sampler = session.engine.steps.sampler
    while reply.n_generated + reply.n_prompt < reply.reply.max_length:
        (sampled,) = sampler.sample([request], logits[None])
        if isinstance(sampled, TahrError):
            raise sampled
        deltas, reason = accept_token(reply, sampled, perf_counter())
        yield text_of(deltas)
        if reason:
            return
        if session.length != n_tokens or session.sequence is not text:
            raise ConfigError("The text in memory changed while its reply was made: a callback must leave it alone.")
        logits = session.feed([sampled.token])
        n_tokens += 1
