"""A sequence: its tokens, how many of them are computed, and everything else that belongs to one request."""

import itertools
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from enum import Enum

from tahr.config import SamplingParams
from tahr.engine.sequences.parts import (
    HeldMemory,
    Queueing,
    ReplyState,
    SequenceAdapters,
    SequenceResult,
    TokensAhead,
    WantedOutput,
)
from tahr.engine.sequences.prompt_rows import NO_ROWS, PromptRows
from tahr.errors import GenerateError, TahrError

_ids = itertools.count(1)


class State(Enum):
    """The states of a sequence."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PREEMPTED = "preempted"  # waiting again: it has lost its pages, but not its tokens
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


OVER = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
NEXT: dict[State, frozenset[State]] = {
    State.WAITING: OVER | {State.PREFILLING},
    State.PREFILLING: OVER | {State.DECODING, State.PREEMPTED},
    State.DECODING: OVER | {State.PREEMPTED},
    State.PREEMPTED: OVER | {State.PREFILLING},
    **dict.fromkeys(OVER, frozenset()),
}
STATE_AFTER = {
    "stop": State.COMPLETED,
    "length": State.COMPLETED,
    "cancelled": State.CANCELLED,
    "abort": State.CANCELLED,  # its text so far is a reply: the server ends
    "error": State.FAILED,
}  # keys are finish reasons


@dataclass(eq=False, slots=True)
class Sequence:
    """Progress is one number: `computed` catches up with `len(tokens)`.

    `scheduled` runs ahead of it by what steps in flight compute. A sequence may even be scheduled for a token that the
    step in flight samples: `n_ahead` counts such tokens, and the last of them will lie in its `token_slot`. Or it is
    scheduled for tokens that are only guessed: then `n_ahead` counts its `drafts`.
    """

    tokens: list[int]
    params: SamplingParams
    reply: ReplyState
    adapters: SequenceAdapters = field(default_factory=SequenceAdapters)
    rows: PromptRows = NO_ROWS  # rows that its prompt reads in place of embeddings
    id: int = field(default_factory=lambda: next(_ids))  # numbers in the order of arrival
    state: State = State.WAITING
    n_prompt: int = 0
    computed: int = 0  # tokens whose keys and values are stored
    scheduled: int = 0  # tokens whose keys and values are stored once the steps in flight have landed
    ahead: TokensAhead = field(default_factory=TokensAhead)
    wanted: WantedOutput = field(default_factory=WantedOutput)
    queueing: Queueing = field(default_factory=Queueing)
    memory: HeldMemory = field(default_factory=HeldMemory)
    result: SequenceResult = field(default_factory=SequenceResult)

    def __post_init__(self) -> None:
        self.n_prompt = self.result.stats.n_prompt_tokens = len(self.tokens)
        reply = self.reply
        reply.grammar = reply.request.grammar if reply.request else None
        reply.may_be_forced = reply.grammar is not None or self.params.thinking_budget is not None
        reply.is_plain = not reply.may_be_forced and self.params.logprobs is None
        if self.params.prompt_logprobs is not None and self.n_prompt > 1:
            self.wanted.first_row = 0  # rows of a prompt give the probabilities of its tokens

    @property
    def n_left(self) -> int:
        """Tokens to schedule."""
        return len(self.tokens) + self.ahead.n_ahead - self.scheduled

    @property
    def is_idle(self) -> bool:
        """Whether it keeps its pages only because its owner may add tokens."""
        return self.queueing.stays and self.computed == len(self.tokens)

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def done(self) -> bool:
        return self.result.finish_reason is not None

    def enter(self, state: State) -> None:
        """Change the state; the only place that does."""
        if state not in NEXT[self.state]:
            raise GenerateError(f"Request {self.id} is {self.state.value} and cannot become {state.value}.")
        self.state = state

    def end(self, reason: str, error: TahrError | None = None) -> None:
        """Finish for a reason."""
        self.enter(STATE_AFTER[reason])
        self.result.finish_reason = reason
        self.result.error = error
        # An idle engine still knows the sequences of its last step, but not their images.
        self.rows = self.rows.without_sources()

    def set_drafts(self, drafts: ListOf[int]) -> None:
        """Schedule guesses of its next tokens together with its last one; () takes them back."""
        self.ahead.drafts = drafts
        self.ahead.n_ahead = len(drafts)

    def append(self, token: int, now: float) -> None:
        """Add a sampled token and note the time."""
        self.tokens.append(token)
        ahead = self.ahead
        if ahead.n_ahead:
            ahead.n_ahead -= 1
        stats = self.result.stats
        stats.n_generated_tokens += 1
        stats.last_token_at = now
        if not stats.first_token_at:
            stats.first_token_at = now
