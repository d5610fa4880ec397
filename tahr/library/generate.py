"""Picks and feeds token after token in a session: a reply made by hand."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from tahr.backends.api import Floats
from tahr.config import SamplingParams
from tahr.engine.builder import breakers
from tahr.engine.detokenize import TextWriter, has_text
from tahr.engine.sampler import Sampler, SampleRequest, SamplingState
from tahr.errors import TahrError
from tahr.library.session import Session
from tahr.text.deltas import text_of
from tahr.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Reply:
    """How a reply is made: its parameters and, from them, what picks, what writes and what ends it."""

    params: SamplingParams
    sampling: SamplingState
    writer: TextWriter
    ends: Callable[[int], bool]
    n_vocab: int  # a model may have more logits than there are tokens

    @staticmethod
    def begin(params: SamplingParams, tokenizer: Tokenizer, prompt: ListOf[int]) -> "Reply":
        """A reply that has no tokens yet."""
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else tokenizer.eos_ids)
        sampling = SamplingState(params, ends, breakers(tokenizer))
        writer = TextWriter(tokenizer, params.stop, continuing=has_text(tokenizer, prompt))
        sampling.check(tokenizer.n_vocab)
        return Reply(params, sampling, writer, ends.__contains__, tokenizer.n_vocab)


def decode(session: Session, logits: Floats, reply: Reply, max_tokens: int) -> Iterator[str]:
    """The text of each picked token (it may be empty), until the reply ends or has `max_tokens`.

    The session needs room for one fewer: the last token is never fed.
    """
    tokens = session.tokens
    request = SampleRequest(reply.sampling, tokens, n_prompt=len(tokens))
    sampler = Sampler(session.backend, reply.n_vocab)
    for left in range(max_tokens - 1, -1, -1):
        (answer,) = sampler.sample([request], logits[None])
        if isinstance(answer, TahrError):
            raise answer
        tokens.append(answer.token)
        last = reply.ends(answer.token)
        deltas = () if last else reply.writer.push(answer.token)
        last = last or reply.writer.stopped or not left
        yield text_of(deltas if not last or reply.writer.stopped else deltas + reply.writer.flush())
        if last:
            return
        logits = session.feed([answer.token])
