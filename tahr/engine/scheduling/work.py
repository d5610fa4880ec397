"""Limits of a step, its prefill budget, and the work of its sequences."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

from tahr.engine.sequences.sequence import Sequence, State
from tahr.kv.pages import PagePool
from tahr.kv.tables import PageCopy

MAX_CHUNK = 65536  # tokens of one prompt in one step


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits of one step."""

    n_seqs: int  # sequences that run at once
    n_prefill_seqs: int  # sequences that prefill in one step
    n_decode_seqs: int  # sequences that decode in one step
    prefill_chunk: int  # tokens of one sequence
    n_prefill_tokens: int  # tokens of all that prefill; the first one gets its chunk even if that is more
    n_active_prefill_tokens: int | None = None  # the most of either while others decode; None: as `mixed_s` says
    mixed_s: float = 0.1  # goal for a step with prompts while others decode, so that these do not wait long
    n_decoding_first: int = 0  # prompts go first while fewer sequences decode
    n_decode_tokens: int = 1  # a sequence with at most so many tokens to compute decodes: one, and its drafts
    n_row_tokens: int = 64  # prefilled tokens whose rows are wanted (scored prompts, for example)
    whole_texts: bool = False  # a sequence is computed in one step, or waits
    image_rows: int = 0  # tokens of an image whose tokens see each other, and are computed in one step; 0: they do not
    admit_below: float = 0.9  # share of the pool that admission may fill; the rest is for running sequences to grow

    def for_hidden_rows(self) -> "SchedulerLimits":
        """A copy for steps that give hidden rows: they are small, so that every token may have one."""
        return replace(self, n_prefill_seqs=self.n_seqs, n_row_tokens=self.n_tokens)

    @property
    def n_tokens(self) -> int:
        return max(self.prefill_chunk, self.n_prefill_tokens) + self.n_decode_seqs * self.n_decode_tokens

    @property
    def n_most_seqs(self) -> int:
        """How many sequences a step may hold."""
        return self.n_prefill_seqs + self.n_decode_seqs

    def reserve(self, pool: PagePool) -> int:
        """Pages of a pool that admission must leave, so that running sequences can grow."""
        if pool.n_pages >= self.n_seqs * pool.most_held:
            return 0  # every sequence fits
        return pool.n_pages - ceil(pool.n_pages * self.admit_below)

    @property
    def n_rows(self) -> int:
        return self.n_prefill_seqs + self.n_decode_seqs * self.n_decode_tokens + self.n_row_tokens


class WorkItem(NamedTuple):
    """The part of one sequence in a step: compute `n_tokens` tokens from position `begin` on."""

    sequence: Sequence
    begin: int
    n_tokens: int
    samples: bool  # all of its tokens are then computed, so that the next one can be sampled
    n_rows: int  # the rows of so many of its last tokens are wanted


@dataclass(slots=True)
class StepWork:
    """The work of a step by the fields of its items: entry i of each list belongs to item i."""

    sequences: list[Sequence] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    n_tokens: list[int] = field(default_factory=list)
    samples: list[bool] = field(default_factory=list)
    n_rows: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)  # the tokens of all items; one not known yet: see `StepInputs.ids`
    copies: list[PageCopy] = field(default_factory=list)  # copies to make before the step
    has_images: bool = False  # images of tokens that see each other: any other sequence has one token

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[WorkItem]:
        return map(WorkItem, self.sequences, self.begins, self.n_tokens, self.samples, self.n_rows)

    def add(self, seq: Sequence, begin: int, n: int, samples: bool, n_rows: int, shift: int = 0) -> None:
        """Let the step compute n tokens of a sequence, or those `shift` places behind them in their places."""
        self.sequences.append(seq)
        self.begins.append(begin)
        self.n_tokens.append(n)
        self.samples.append(samples)
        self.n_rows.append(n_rows)
        first = begin + shift
        known = seq.tokens[first : first + n]
        self.ids += known
        if len(known) < n:
            self.ids += [token_ahead(seq, at) for at in range(first + len(known), first + n)]

    def add_last(self, seq: Sequence, begin: int) -> None:
        """Let the step compute the last token of a sequence without drafts, which may be one that is not known yet."""
        self.sequences.append(seq)
        self.begins.append(begin)
        self.n_tokens.append(1)
        self.samples.append(True)
        self.n_rows.append(1)
        ahead = seq.ahead
        self.ids.append(~ahead.token_slot if ahead.n_ahead else seq.tokens[-1])


def token_ahead(seq: Sequence, at: int) -> int:
    """A token that is not the sequence's yet: a draft, or the one that the step in flight samples."""
    place = at - len(seq.tokens)
    return seq.ahead.drafts[place] if place < len(seq.ahead.drafts) else ~seq.ahead.token_slot


class PrefillPace:
    """How many prompt tokens a step may hold beside sequences that decode, so that these do not wait long.

    Steps that are mostly prompts tell how long a token takes; before the first one, nothing is limited. The number is
    coarse and stays while it is about right: where a step is padded to a size that was recorded, each size costs
    something when it is met first.
    """

    LEAST = 64  # tokens: smaller steps would cost prompts much and gain little
    N_BITS = 2  # leading bits of the number of tokens that are kept
    LEAST_SHARE = 0.25  # a step that takes less of `mixed_s` has too few tokens to tell about a large one
    OVER = 1.125  # this many times `mixed_s` is still right
    KEPT = (0.8, 1.6)  # a better number between these many times the one that holds does not take its place

    def __init__(self, mixed_s: float) -> None:
        self.mixed_s = mixed_s  # goal for a step
        self.token_s = 0.0  # seconds of a token, over the last steps that told
        self.n_tokens: int | None = None
        self._large_s = 0.0  # seconds of a token of a large step

    def learn(self, n_tokens: int, n_decoded: int, seconds: float) -> None:
        """A step took so long; `n_decoded` of its tokens are not of prompts, and take longer than those."""
        if n_tokens - n_decoded < max(self.LEAST, n_tokens / 2):
            return
        token_s = seconds / n_tokens
        self.token_s = smoothed(self.token_s, token_s)
        if seconds < self.LEAST_SHARE * self.mixed_s and token_s >= self._large_s:
            return
        self._large_s = smoothed(self._large_s, token_s)
        n = max(self.LEAST, int(self.mixed_s / self._large_s))
        low, high = (each * (self.n_tokens or 0) for each in self.KEPT)
        if not low <= n <= high:
            n = int(self.OVER * n)
            self.n_tokens = max(self.LEAST, n & -(1 << max(0, n.bit_length() - self.N_BITS)))


def smoothed(before: float, now: float) -> float:
    """Mean of what is measured now and what was known."""
    return (before + now) / 2 if before else now


class PrefillBudget:
    """Remaining capacity of a step for sequences that prefill."""

    def __init__(self, limits: SchedulerLimits, n_most: int | None = None):
        self.n_seqs = limits.n_prefill_seqs
        self._n_row_tokens = limits.n_row_tokens
        self._limits = limits
        self._chunk = min(limits.prefill_chunk, n_most or limits.prefill_chunk)
        self._n_together = min(limits.n_prefill_tokens, n_most or limits.n_prefill_tokens)
        self.n_tokens = max(self._n_together, self._chunk)
        self._n_forced = 0  # tokens of sequences that decode

    @property
    def is_whole(self) -> bool:
        """Whether no sequence that prefills is in the step."""
        return self.n_seqs == self._limits.n_prefill_seqs

    @property
    def open(self) -> bool:
        return self.n_seqs > 0 and self.n_tokens > 0

    def holds(self, seq: Sequence) -> bool:
        """Whether a sequence may be in the step; one that decodes and has forced tokens counts as decoding."""
        return self.n_tokens > 0 and (self.n_seqs > 0 or seq.state is State.DECODING)

    def grant(self, seq: Sequence) -> int:
        """How many tokens a sequence may compute."""
        n = min(seq.n_left, self._chunk, self.n_tokens)
        if self._limits.whole_texts:
            return n if n == seq.n_left else 0
        n_before = max(0, seq.wanted.first_row - seq.scheduled)  # tokens whose rows are not wanted
        return n if n_before >= n else min(n, n_before + self._n_row_tokens)

    def spend(self, seq: Sequence, n: int) -> None:
        """A sequence, whose tokens are scheduled now, uses n tokens of the budget."""
        if seq.state is State.DECODING:
            self._n_forced += n
            self.n_tokens -= n
            return
        if self.is_whole:
            self.n_tokens = self._n_together - self._n_forced  # whatever the budget is, the first one was within it
        self.n_seqs -= 1
        self.n_tokens -= n
        self._n_row_tokens -= max(0, min(n, seq.scheduled - seq.wanted.first_row))
