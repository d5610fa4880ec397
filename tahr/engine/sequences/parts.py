"""Parts of a sequence, each of one meaning: what reads one of them need not know the others."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tahr.engine.sequences.adapter_stack import NO_STACK, AdapterStack
from tahr.engine.sequences.prompt_rows import RowSource
from tahr.engine.sequences.shares import OwnerShare
from tahr.engine.sequences.stats import RequestStats
from tahr.errors import TahrError
from tahr.executor.output import Output
from tahr.kv.prefix import BlockHashes
from tahr.kv.tables import PageTable

if TYPE_CHECKING:
    from tahr.engine import sequences
    from tahr.engine.sampling.sampling_state import SampledToken, SampleRequest
    from tahr.engine.sequences.draft_state import DraftState
    from tahr.engine.sequences.frames import Frames
    from tahr.engine.sequences.writer import Writer
    from tahr.grammar.state import GrammarState

Rank = tuple[int, ...]  # the lowest goes first
NO_ROW = sys.maxsize


@dataclass(slots=True)
class ReplyState:
    """The reply of a sequence: how its tokens are sampled, become text and end."""

    max_length: int  # tokens it may grow to: prompt + max_tokens, cut to the context
    writer: "Writer | None" = None
    request: "SampleRequest | None" = None  # the sampler's state
    ends: frozenset[int] = frozenset()  # tokens that end it
    grammar: "GrammarState | None" = None  # grammar state of that request
    may_be_forced: bool = False  # a grammar, or the end of a block of thinking, may force its next token
    is_plain: bool = False  # a token that does not end it becomes text, and that is all


@dataclass(slots=True)
class SequenceAdapters:
    """The adapters its weights are changed by."""

    stack: AdapterStack = NO_STACK
    digest: str = ""  # part of its block hashes


@dataclass(slots=True)
class TokensAhead:
    """Tokens that may be scheduled before the host knows them, or is sure of them."""

    n_ahead: int = 0  # tokens that steps in flight sample, and drafts
    token_slot: int = 0  # slot of its last sampled token before the host knows it; 0: it has none
    host_bound: bool = False  # the host makes its next token from the last one: it never runs ahead
    speculates: bool = False  # the host guesses its next tokens from the last one: likewise
    drafts: Sequence[int] = ()  # guesses of its next tokens, computed together with its last token
    draft_state: "DraftState | None" = None  # the speculator's state


@dataclass(slots=True)
class WantedOutput:
    """The output of its steps."""

    output: Output = Output.LOGITS
    first_row: int = NO_ROW  # rows from this position on are wanted, besides the last one
    sink: Callable[[Any], None] | None = None  # takes the rows, where no tokens are sampled from them
    source: RowSource | None = None  # input of a tower whose rows go to `sink`, in place of what tokens give
    frames: "Frames | None" = None  # frames of its tokens, in a model that speaks


@dataclass(slots=True)
class HeldMemory:
    """The pages and the state it holds."""

    n_owned: int = 0  # pages up to this token may be written: nobody else needs them
    tables: list[PageTable] = field(default_factory=list)  # one page table per pool
    slot: int = 0  # slot of its state, in models that have one; 0: none
    checkpoints: tuple[int, ...] = ()  # positions at which its state is to be kept for the prefix cache
    hashes: BlockHashes | None = None  # None: takes no part in the prefix cache


@dataclass(slots=True)
class Queueing:
    """Turns of a sequence: when it is admitted, and whether it waits."""

    stays: bool = False  # open: waits for more tokens with nothing left to compute, until it is closed
    swapped_out: bool = False  # idle, without its pages: not queued again before its owner needs it
    forks: "list[sequences.sequence.Sequence]" = field(default_factory=list)  # other choices, until they are forked
    owner: str = ""  # the one it is computed for: owners have equal shares
    share: OwnerShare = field(default_factory=OwnerShare)  # the owner's, once it is ranked
    n_before: int = 0  # sequences of its request that come before it
    is_background: bool = False  # computed while no other sequence wants to be
    turn: int = 0  # turn of admission, among those that the policy holds for equal
    rank: Rank = ()
    n_passed: int = 0  # times a younger one was admitted before it, while it was the oldest
    last_step: int = 0  # step in which it was scheduled last
    blocked_until: int = 0  # preempted: the last step that computed for it, which must land before it is admitted again


@dataclass(slots=True)
class SequenceResult:
    """The end of a sequence, the log-probabilities of its tokens, and its counts and times."""

    finish_reason: str | None = None
    error: TahrError | None = None
    logprobs: "list[SampledToken]" = field(default_factory=list)  # generated tokens, if requested
    prompt_logprobs: "list[SampledToken]" = field(default_factory=list)  # prompt tokens but the first, if requested
    stats: RequestStats = field(default_factory=RequestStats)
