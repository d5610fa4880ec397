"""Output of a request: its choices as they grow, in chunks and whole."""

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import Any

from tahr.engine.engine import Event
from tahr.engine.sampling.sampling_state import SampledToken
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.sequences.stats import RequestStats
from tahr.errors import TahrError
from tahr.generation.writers import DeferredTextWriter
from tahr.text.replies.deltas import Delta, Deltas, ToolCall, cut_call_of, merge, reasoning_of, text_of, tool_calls_of

MOST_DEFERRED = 256  # tokens that become text at once, so that nothing waits long for a long reply


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished reply."""

    text: str
    token_ids: list[int]
    n_prompt_tokens: int
    n_cached_tokens: int
    finish_reason: str
    stats: RequestStats
    logprobs: list[SampledToken] = field(default_factory=list)  # generated tokens, if requested
    prompt_logprobs: list[SampledToken] = field(default_factory=list)  # prompt tokens but the first, if requested
    others: "tuple[Completion, ...]" = ()  # the other choices, with n > 1
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    cut_call: ToolCall | None = None  # the call in whose middle the reply ended
    parsed: Any = None  # the object that response_format asked for
    parse_error: str = ""  # why there is none, although the reply is complete
    n_reasoning_tokens: int = 0  # tokens spent on reasoning
    matched_stop: str | None = None  # the stop string that ended it


@dataclass(slots=True)  # not frozen: one is made per token, and freezing costs three times as much as the rest
class Chunk:
    """A piece of a reply; the last one carries the finish reason and the whole completion."""

    deltas: Deltas
    token_ids: list[int]
    finish_reason: str | None = None
    completion: Completion | None = None
    index: int = 0  # number of the choice, with n > 1
    logprobs: ListOf[SampledToken] = ()  # the same tokens, if requested

    @property
    def text(self) -> str:
        return text_of(self.deltas)


class Choice:
    """A reply to a prompt while it grows. Output that no reader has taken yet is kept as one piece."""

    def __init__(self, sequence: Sequence, index: int):
        self.sequence = sequence
        self.index = index
        self.finished = False  # no more events come
        self.deltas: list[Delta] = []
        self.new_tokens: list[int] = []  # tokens since the last chunk
        self.n_texts = 0  # new tokens that are text already, where that is deferred
        self._n_taken = 0  # deltas
        self._n_logprobs = 0  # log-probabilities handed out in chunks
        self._last_taken = False
        self._deferred = sequence.reply.writer if isinstance(sequence.reply.writer, DeferredTextWriter) else None

    def next_chunk(self) -> Chunk | None:
        """Everything new as one chunk; None if there is nothing. Raises the error of a request that failed."""
        if self._last_taken or not (self.new_tokens or self.finished):
            return None
        if self.finished and self.sequence.result.error:
            self._last_taken = True
            raise self.sequence.result.error
        self.take_deferred()
        deltas = merge(self.deltas[self._n_taken :])
        tokens = self.new_tokens
        self._n_taken = len(self.deltas)
        self.new_tokens = []
        self.n_texts = 0
        logprobs = self._new_logprobs(len(tokens)) if self.sequence.result.logprobs else ()
        if not self.finished:
            return Chunk(deltas, tokens, None, None, self.index, logprobs)
        self._last_taken = True
        return Chunk(deltas, tokens, self.sequence.result.finish_reason, self.completion(), self.index, logprobs)

    def take_deferred(self) -> None:
        """Add the text of the new tokens to the deltas, where it is made only now."""
        if self._deferred:
            n_tokens = len(self.new_tokens)
            self.deltas += self._deferred.take(n_tokens - self.n_texts)
            self.n_texts = n_tokens

    def _new_logprobs(self, n: int) -> list[SampledToken]:
        begin = self._n_logprobs
        self._n_logprobs = self._n_logprobs + n
        return self.sequence.result.logprobs[begin : self._n_logprobs]

    def completion(self, others: "Iterable[Completion]" = ()) -> Completion:
        """The whole reply, once it is finished."""
        seq = self.sequence
        if seq.result.error:
            raise seq.result.error
        self.take_deferred()
        deltas = merge(self.deltas)
        return Completion(
            text=text_of(deltas),
            token_ids=seq.tokens[seq.n_prompt :],
            n_prompt_tokens=seq.n_prompt,
            n_cached_tokens=seq.result.stats.n_cached_tokens,
            finish_reason=seq.result.finish_reason or "cancelled",
            stats=seq.result.stats,
            logprobs=seq.result.logprobs,
            prompt_logprobs=seq.result.prompt_logprobs,
            others=tuple(others),
            reasoning=reasoning_of(deltas),
            tool_calls=tool_calls_of(deltas),
            cut_call=cut_call_of(deltas),
            n_reasoning_tokens=seq.reply.writer.n_reasoning_tokens if seq.reply.writer else 0,
            matched_stop=seq.reply.writer.matched_stop if seq.reply.writer else None,
        )


class Request:
    """A submitted request and its choices, as many as it asked for."""

    def __init__(self, first: Sequence):
        self.sequences = [first, *first.queueing.forks]
        self.choices = {seq.id: Choice(seq, index) for index, seq in enumerate(self.sequences)}
        self.id = first.id
        self.has_one_choice = not first.queueing.forks
        self.finished = False  # all choices are
        self._is_advanced = False  # something was added since a chunk was last asked for

    def add(self, event: Event) -> bool:
        """An event of one of its sequences. Runs for every token.

        Whether a reader must be notified: the first event since a chunk was last asked for, or the end of a choice.
        """
        seq, deltas, tokens = event
        choice = self.choices[seq.id]
        choice.deltas += deltas
        choice.new_tokens += tokens
        if len(choice.new_tokens) - choice.n_texts > MOST_DEFERRED:
            choice.take_deferred()
        if seq.result.finish_reason:
            self.update_finished()
            return True
        is_known = self._is_advanced
        self._is_advanced = True
        return not is_known

    def update_finished(self) -> None:
        """See which choices are finished; one that failed before the end of its prefill ends the others too."""
        for choice in self.choices.values():
            choice.finished = choice.finished or choice.sequence.done
        self.finished = all(choice.finished for choice in self.choices.values())

    def fail(self, error: TahrError) -> None:
        """Its sequences are over, but the last events of some were lost: those have failed, whatever they say."""
        for choice in self.choices.values():
            if not choice.finished:
                choice.sequence.result.error = choice.sequence.result.error or error
        self.update_finished()

    def next_chunk(self) -> Chunk | None:
        """The next chunk of any choice; None if there is nothing new."""
        self._is_advanced = False
        for choice in self.choices.values():
            if chunk := choice.next_chunk():
                return chunk
        return None

    def completion(self) -> Completion:
        """The first choice, with the others beside it."""
        first, *others = self.choices.values()
        return first.completion([other.completion() for other in others])
