"""A sequence: its tokens, how many of them are computed, and everything else that belongs to one request."""

import itertools
import sys
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from tahr.config import SamplingParams
from tahr.engine.sequences.adapter_stack import NO_STACK, AdapterStack
from tahr.engine.sequences.prompt_rows import NO_ROWS, PromptRows, RowSource
from tahr.engine.sequences.stats import RequestStats
from tahr.errors import GenerateError, TahrError
from tahr.executor.output import Output
from tahr.kv.prefix import BlockHashes
from tahr.kv.tables import PageTable

if TYPE_CHECKING:
    from tahr.engine.sampling.sampling_state import SampledToken, SampleRequest
    from tahr.engine.sequences.draft_state import DraftState
    from tahr.engine.sequences.writer import Writer
    from tahr.grammar.state import GrammarState

Rank = tuple[int, ...]  # the lowest goes first
NO_ROW = sys.maxsize

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
    max_length: int  # tokens it may grow to: prompt + max_tokens, cut to the context
    writer: "Writer | None" = None
    request: "SampleRequest | None" = None  # the sampler's state
    grammar: "GrammarState | None" = None  # grammar state of that request
    may_be_forced: bool = False  # a grammar, or the end of a block of thinking, may force its next token
    is_plain: bool = False  # a token that does not end it becomes text, and that is all
    lora: AdapterStack = NO_STACK  # the adapters its weights are changed by
    adapter: str = ""  # digest of the stack: part of its block hashes
    rows: PromptRows = NO_ROWS  # rows that its prompt reads in place of embeddings
    ends: frozenset[int] = frozenset()  # tokens that end it
    id: int = field(default_factory=lambda: next(_ids))  # numbers in the order of arrival
    state: State = State.WAITING
    n_prompt: int = 0
    computed: int = 0  # tokens whose keys and values are stored
    scheduled: int = 0  # tokens whose keys and values are stored once the steps in flight have landed
    n_ahead: int = 0  # tokens that steps in flight sample and that may be scheduled before the host knows them
    token_slot: int = 0  # slot of its last sampled token before the host knows it; 0: it has none
    host_bound: bool = False  # the host makes its next token from the last one: it never runs ahead
    speculates: bool = False  # the host guesses its next tokens from the last one: likewise
    drafts: ListOf[int] = ()  # guesses of its next tokens, computed together with its last token
    draft_state: "DraftState | None" = None  # the speculator's state
    output: Output = Output.LOGITS
    first_row: int = NO_ROW  # rows from this position on are wanted, besides the last one
    sink: Callable[[Any], None] | None = None  # takes the rows, where no tokens are sampled from them
    source: RowSource | None = None  # input of a tower whose rows go to `sink`, in place of what tokens give
    stays: bool = False  # open: waits for more tokens with nothing left to compute, until it is closed
    swapped_out: bool = False  # idle, without its pages: not queued again before its owner needs it
    n_owned: int = 0  # pages up to this token may be written: nobody else needs them
    tables: list[PageTable] = field(default_factory=list)  # one page table per pool
    slot: int = 0  # slot of its state, in models that have one; 0: none
    checkpoints: tuple[int, ...] = ()  # positions at which its state is to be kept for the prefix cache
    hashes: BlockHashes | None = None  # None: takes no part in the prefix cache
    forks: "list[Sequence]" = field(default_factory=list)  # the other choices of its request, until they are forked
    n_before: int = 0  # sequences of its request that come before it
    turn: int = 0  # turn of admission, among those that the policy holds for equal
    rank: Rank = ()
    n_passed: int = 0  # times a younger one was admitted before it, while it was the oldest
    last_step: int = 0  # step in which it was scheduled last
    blocked_until: int = 0  # preempted: the last step that computed for it, which must land before it is admitted again
    finish_reason: str | None = None
    error: TahrError | None = None
    logprobs: "list[SampledToken]" = field(default_factory=list)  # generated tokens, if requested
    prompt_logprobs: "list[SampledToken]" = field(default_factory=list)  # prompt tokens but the first, if requested
    stats: RequestStats = field(default_factory=RequestStats)

    def __post_init__(self) -> None:
        self.n_prompt = self.stats.n_prompt_tokens = len(self.tokens)
        self.grammar = self.request.grammar if self.request else None
        self.may_be_forced = self.grammar is not None or self.params.thinking_budget is not None
        self.is_plain = not self.may_be_forced and self.params.logprobs is None
        if self.params.prompt_logprobs is not None and self.n_prompt > 1:
            self.first_row = 0  # rows of a prompt give the probabilities of its tokens

    @property
    def n_left(self) -> int:
        """Tokens to schedule."""
        return len(self.tokens) + self.n_ahead - self.scheduled

    @property
    def is_idle(self) -> bool:
        """Whether it keeps its pages only because its owner may add tokens."""
        return self.stays and self.computed == len(self.tokens)

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    def enter(self, state: State) -> None:
        """Change the state; the only place that does."""
        if state not in NEXT[self.state]:
            raise GenerateError(f"Request {self.id} is {self.state.value} and cannot become {state.value}.")
        self.state = state

    def end(self, reason: str, error: TahrError | None = None) -> None:
        """Finish for a reason."""
        self.enter(STATE_AFTER[reason])
        self.finish_reason = reason
        self.error = error

    def set_drafts(self, drafts: ListOf[int]) -> None:
        """Schedule guesses of its next tokens together with its last one; () takes them back."""
        self.drafts = drafts
        self.n_ahead = len(drafts)

    def append(self, token: int, now: float) -> None:
        """Add a sampled token and note the time."""
        self.tokens.append(token)
        if self.n_ahead:
            self.n_ahead -= 1
        stats = self.stats
        stats.n_generated_tokens += 1
        stats.last_token_at = now
        if not stats.first_token_at:
            stats.first_token_at = now
