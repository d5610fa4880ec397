"""What comes back from a request: its answers as they grow, in pieces and whole."""

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from tahr.engine.engine import Event
from tahr.engine.sampler import SampledToken
from tahr.engine.sequence import Sequence
from tahr.engine.stats import RequestStats


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished reply."""

    text: str
    token_ids: list[int]
    n_prompt_tokens: int
    n_cached_tokens: int
    finish_reason: str
    stats: RequestStats
    logprobs: list[SampledToken] = field(default_factory=list)  # of the generated tokens, if asked for
    prompt_logprobs: list[SampledToken] = field(
        default_factory=list
    )  # of the prompt's tokens but the first, if asked for
    others: "tuple[Completion, ...]" = ()  # the other answers, with n > 1


@dataclass(slots=True)  # not frozen: one is made per token, and freezing costs three times as much as the rest
class Chunk:
    """A piece of a reply; the last one carries the finish reason and the whole completion."""

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    completion: Completion | None = None
    index: int = 0  # which answer, with n > 1
    logprobs: ListOf[SampledToken] = ()  # of these tokens, if asked for


class Answer:
    """One answer while it grows. What nobody has taken yet is kept as one piece, however long the reader is away."""

    def __init__(self, sequence: Sequence, index: int):
        self.sequence = sequence
        self.index = index
        self.over = False  # no more events come
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._n_taken = 0  # texts
        self._n_shown = 0  # log-probabilities
        self._handed_over = False  # the last chunk has been taken

    def hear(self, event: Event) -> None:
        """An event of its sequence."""
        self._texts.append(event.text)
        self._tokens.extend(event.tokens)

    def take(self) -> Chunk | None:
        """Everything new as one chunk; None if there is nothing. Raises the error of a request that failed."""
        if self._handed_over or not (self._tokens or self.over):
            return None
        if self.over and self.sequence.error:
            self._handed_over = True
            raise self.sequence.error
        text, tokens = "".join(self._texts[self._n_taken :]), self._tokens
        self._n_taken, self._tokens = len(self._texts), []
        logprobs = self._new_logprobs(len(tokens)) if self.sequence.logprobs else ()
        if not self.over:
            return Chunk(text, tokens, None, None, self.index, logprobs)
        self._handed_over = True
        return Chunk(text, tokens, self.sequence.finish_reason, self.completion(), self.index, logprobs)

    def _new_logprobs(self, n: int) -> list[SampledToken]:
        begin, self._n_shown = self._n_shown, self._n_shown + n
        return self.sequence.logprobs[begin : self._n_shown]

    def completion(self, others: "Iterable[Completion]" = ()) -> Completion:
        """The whole answer, once it is over."""
        seq = self.sequence
        if seq.error:
            raise seq.error
        return Completion(
            text="".join(self._texts),
            token_ids=seq.tokens[seq.n_prompt :],
            n_prompt_tokens=seq.n_prompt,
            n_cached_tokens=seq.stats.n_cached_tokens,
            finish_reason=seq.finish_reason or "cancelled",
            stats=seq.stats,
            logprobs=seq.logprobs,
            prompt_logprobs=seq.prompt_logprobs,
            others=tuple(others),
        )


class Request:
    """A submitted request: its answers, as many as it asked for."""

    def __init__(self, first: Sequence):
        self.sequences = [first, *first.forks]
        self.answers = {seq.id: Answer(seq, index) for index, seq in enumerate(self.sequences)}

        self.id = first.id
        self.is_single = not first.forks

    @property
    def over(self) -> bool:
        for answer in self.answers.values():  # noqa: SIM110  (asked per token, and a generator costs more)
            if not answer.over:
                return False
        return True

    def hear(self, event: Event) -> None:
        """An event of one of its sequences."""
        self.answers[event.sequence.id].hear(event)
        if event.sequence.done:
            self.settle()

    def settle(self) -> None:
        """See which answers are over; one that failed before its prompt was read takes the others with it."""
        for answer in self.answers.values():
            answer.over = answer.over or answer.sequence.done

    def take(self) -> Chunk | None:
        """The next chunk of any answer; None if there is nothing new."""
        for answer in self.answers.values():
            if chunk := answer.take():
                return chunk
        return None

    def completion(self) -> Completion:
        """The first answer, with the others beside it."""
        first, *others = self.answers.values()
        return first.completion([other.completion() for other in others])
