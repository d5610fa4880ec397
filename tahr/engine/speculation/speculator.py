"""The speculator: before a step it lets a proposer guess, after it, it learns what the guesses were worth."""

import logging
from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from tahr.engine.scheduling.scheduler import Scheduler
from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.draft_state import MEMORY, DraftState
from tahr.engine.sequences.sequence import Sequence, State
from tahr.engine.speculation.costs import StepCosts
from tahr.engine.speculation.lengths import Prospect, draft_lengths
from tahr.engine.speculation.proposer import DraftRequest, Proposer
from tahr.engine.step.draft_grammars import cut_drafts, forget
from tahr.engine.step.drafts import Drafts
from tahr.engine.step.row_columns import Columns
from tahr.executor.output import Output

log = logging.getLogger("tahr.engine")

PROBE_AFTER = 32  # steps after which sequences for which nothing was guessed get one guess: things may have changed
MOST_PATIENCE = 1024  # a batch for which guesses keep failing gets one after twice as many steps each time, up to these
REPLY_TOKENS = 256  # tokens that a reply has left at most, as assumed: they repay the work before its first draft
PROBE_SHARE = 0.01  # share of the time without guesses that probing may cost


@dataclass(slots=True)
class SpeculationStats:
    """Counts of guesses so far."""

    n_drafts: int = 0  # drafts of one or more tokens each
    n_draft_tokens: int = 0
    n_accepted_tokens: int = 0


class Speculator:
    """Guesses at most `n_most` tokens per sequence and step, fewer or none where that is expected to be faster.

    With `adapts` off it always guesses as many as it may: for tests and measurements.
    """

    def __init__(self, proposer: Proposer, n_most: int, adapts: bool = True, targets: Columns | None = None):
        self.proposer = proposer
        self.targets = targets  # where steps of the model store rows that the proposer reads; None: nowhere
        self.n_most = n_most
        self.adapts = adapts
        self.failed = False  # the proposer has raised an error
        self.stats = SpeculationStats()
        self.costs = StepCosts()
        self._acceptance = proposer.prior  # acceptance of all sequences: a new one begins with it
        # steps since anything was guessed, and their seconds
        self._n_idle = 0
        self._idle_s = 0.0
        # steps without guesses before some are probed, whatever they are expected to bring
        self._patience = PROBE_AFTER

    # ---- before a step ----------------------------------------------------------------------------------------

    def waits(self, scheduler: Scheduler) -> bool:
        """Whether drafts are due to sequences with tokens in flight, which must be known first.

        Without waiting, the sequences of a batch would take turns: each step would hold half of them, and take as long.
        """
        return any(seq.ahead.speculates and not is_ready(seq) for seq, _ in self._choose(scheduler))

    def propose(self, scheduler: Scheduler) -> None:
        """Give drafts to the sequences that are about to decode."""
        requests: list[DraftRequest] = []
        for seq, length in self._choose(scheduler):
            if seq.ahead.speculates and is_ready(seq):
                n = scheduler.reserve(seq, min(length, seq.reply.max_length - len(seq.tokens) - 1))
                if n > 0:
                    requests.append(DraftRequest(seq, n))
        if requests:
            self._draft(requests)

    def _choose(self, scheduler: Scheduler) -> list[tuple[Sequence, int]]:
        """The sequences that may get drafts, and of how many tokens; whether each `speculates` is noted.

        Sequences that wait or prefill count as if they decoded, because they soon will.
        """
        self.costs.token_s = scheduler.pace.token_s
        decoding = [
            seq for seq in scheduler.running if seq.state is State.DECODING and seq.wanted.output is Output.LOGITS
        ]
        able = [seq for seq in decoding if may_speculate(seq)]
        n_seqs = max(len(decoding), min(len(scheduler.running) + scheduler.n_waiting, scheduler.limits.n_seqs))
        chosen = list(zip(able, self._lengths(able, n_seqs), strict=True))
        for seq, length in chosen:
            seq.ahead.speculates = length > 0 and not self.failed and self.proposer.may_propose(seq)
        return chosen

    def _draft(self, requests: list[DraftRequest]) -> None:
        """Let the proposer draft. One that fails is not asked again: replies need no drafts."""
        constrained = [seq for seq, _ in requests if seq.reply.grammar]
        for seq in constrained:
            forget(seq)
        try:
            self.proposer.propose(requests)
            for seq in constrained:
                cut_drafts(seq)
        except Exception:
            self._fail()
            for seq, _ in requests:
                seq.set_drafts(())

    def _fail(self) -> None:
        log.exception("Drafting failed, so speculation is off from now on; replies go on without it.")
        self.failed = True

    def _lengths(self, able: ListOf[Sequence], n_seqs: int) -> list[int]:
        states = [self._state(seq) for seq in able]
        if not self.adapts:
            return [self.n_most] * len(able)
        prospects = [self._prospect(seq) for seq in able]
        lengths = draft_lengths(prospects, n_seqs, self.costs, self.proposer.pass_seconds, self.n_most)
        if not any(lengths):
            return self._probes(able) if self._n_idle >= self._patience else [0] * len(able)
        self._patience = PROBE_AFTER
        probes = [int(state.n_since_draft >= PROBE_AFTER) for state in states]
        return [length or probe for length, probe in zip(lengths, probes, strict=True)]

    def _prospect(self, seq: Sequence) -> Prospect:
        n_left = min(seq.reply.max_length - len(seq.tokens), REPLY_TOKENS)
        return Prospect(self._state(seq).acceptance, self.proposer.first_seconds(seq) / max(1, n_left))

    def _probes(self, able: ListOf[Sequence]) -> list[int]:
        """One draft token for as many sequences as may cost that little, those first that have waited longest."""
        lengths = [0] * len(able)
        left = PROBE_SHARE * self._idle_s
        seconds = [self.costs.per_token + self.proposer.first_seconds(seq) for seq in able]
        for i in sorted(range(len(able)), key=lambda i: (seconds[i], -self._state(able[i]).n_since_draft)):
            left -= seconds[i]
            if left < 0:
                break
            lengths[i] = 1
        return lengths

    def _state(self, seq: Sequence) -> DraftState:
        if seq.ahead.draft_state is None:
            seq.ahead.draft_state = DraftState(self._acceptance)
        return seq.ahead.draft_state

    # ---- after a step -----------------------------------------------------------------------------------------

    def follow(self, work: StepWork) -> None:
        """A step was launched, and all that it samples is being sampled: a proposer that follows steps may run."""
        if self.failed or not self.proposer.follows:
            return
        for seq in work.sequences:
            if may_speculate(seq):
                self._state(seq)
        try:
            self.proposer.computed(work)
        except Exception:
            self._fail()

    def learn(self, work: StepWork, drafts: Drafts, accepted: Mapping[int, int], seconds: float | None) -> None:
        """A step has taken so long (None: that says nothing), and so many of its drafts were right."""
        if seconds is not None and all(seq.state is State.DECODING for seq in work.sequences):
            self.costs.measure(sum(work.n_tokens), seconds)
        self._n_idle, self._idle_s = (0, 0.0) if drafts else (self._n_idle + 1, self._idle_s + (seconds or 0.0))
        if sum(map(len, drafts.values())) > 2 * sum(accepted.values()):
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        for item in work:
            state = item.sequence.ahead.draft_state
            if state is None:
                continue
            if item.sequence.id in drafts:
                n_drafts = len(drafts[item.sequence.id])
                n_right = accepted[item.sequence.id]
                self._learn(state, n_drafts, n_right, item.begin + 1 + n_right)
                item.sequence.result.stats.n_draft_tokens += n_drafts
                item.sequence.result.stats.n_accepted_tokens += n_right
            else:
                state.n_since_draft += 1

    def _learn(self, state: DraftState, n_proposed: int, n_right: int, n_tokens: int) -> None:
        state.learn(n_proposed, n_right, n_tokens)
        self._acceptance += MEMORY / 4 * (state.acceptance - self._acceptance)
        self.stats.n_drafts += 1
        self.stats.n_draft_tokens += n_proposed
        self.stats.n_accepted_tokens += n_right


def may_speculate(seq: Sequence) -> bool:
    """Whether a request's tokens may be drafted: it did not say no, and drafts do not change what comes after them.

    Mirostat follows every sample; a budget of thinking appends tokens between two.
    """
    request = seq.reply.request
    params = seq.params
    if request is None or not params.speculative:
        return False
    return not (request.sampling.learns or params.thinking_budget is not None)


def is_ready(seq: Sequence) -> bool:
    """Whether all of its tokens are known and all but the last computed, with nothing of it in flight."""
    return not seq.ahead.n_ahead and seq.computed == seq.scheduled == len(seq.tokens) - 1
