"""A sequence: its tokens, how many of them are computed, and everything else that belongs to one request."""

import itertools
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from tahr.config import SamplingParams
from tahr.engine.stats import RequestStats
from tahr.errors import GenerateError, TahrError
from tahr.kv.prefix import PageNames
from tahr.kv.tables import PageTable

if TYPE_CHECKING:
    from tahr.engine.detokenize import Writer
    from tahr.engine.sampler import SampledToken, SampleRequest

Rank = tuple[int, ...]  # the lowest goes first

_ids = itertools.count(1)


class State(Enum):
    """Where a sequence is in its life."""

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
    "error": State.FAILED,
}  # by finish reason


@dataclass(eq=False, slots=True)
class Sequence:
    """Progress is one number: `computed` catches up with `len(tokens)`."""

    tokens: list[int]
    params: SamplingParams
    max_length: int  # tokens it may grow to: prompt + max_tokens, cut to the context
    writer: "Writer | None" = None
    request: "SampleRequest | None" = None  # what the sampler knows of it
    adapter: str = ""  # the digest of the adapter its weights are changed by
    ends: frozenset[int] = frozenset()  # tokens that end it
    id: int = field(default_factory=lambda: next(_ids))  # in the order of arrival
    state: State = State.WAITING
    n_prompt: int = 0
    computed: int = 0
    n_owned: int = 0  # it may write its text up to here without asking: nobody else needs those pages
    tables: list[PageTable] = field(default_factory=list)  # its pages, one table per pool
    names: PageNames | None = None  # None: takes no part in the prefix cache
    forks: "list[Sequence]" = field(default_factory=list)  # other answers to its prompt, until they go their own way
    rank: Rank = ()
    n_passed: int = 0  # times a younger one was let in before it, while it was the oldest
    last_step: int = 0
    finish_reason: str | None = None
    error: TahrError | None = None
    logprobs: "list[SampledToken]" = field(default_factory=list)  # of the generated tokens, if asked for
    prompt_logprobs: "list[SampledToken]" = field(
        default_factory=list
    )  # of the prompt's tokens but the first, if asked for
    stats: RequestStats = field(default_factory=RequestStats)

    def __post_init__(self) -> None:
        self.n_prompt = self.stats.n_prompt_tokens = len(self.tokens)

    @property
    def behind(self) -> int:
        return len(self.tokens) - self.computed  # 1: decoding; more: prefill, or a text to recompute

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    @property
    def scoring(self) -> bool:
        """Whether logits of prompt tokens are still wanted: how likely each was, given those before it."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.n_prompt - 1

    def enter(self, state: State) -> None:
        """The only way from one state to another."""
        if state not in NEXT[self.state]:
            raise GenerateError(f"Request {self.id} is {self.state.value} and cannot become {state.value}.")
        self.state = state

    def end(self, reason: str, error: TahrError | None = None) -> None:
        """It is over, for that reason."""
        self.enter(STATE_AFTER[reason])
        self.finish_reason, self.error = reason, error

    def picked(self, token: int, now: float) -> None:
        """A new token: append it and keep the clock."""
        self.tokens.append(token)
        stats = self.stats
        stats.n_generated_tokens += 1
        stats.last_token_at = now
        if not stats.first_token_at:
            stats.first_token_at = now
