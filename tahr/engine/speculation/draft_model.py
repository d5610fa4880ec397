"""A draft model: a smaller model of the same vocabulary guesses token after token.

Its keys and values lie in the pages of the model it guesses for: pages are taken, shared, copied and released for both
at once. What it has computed of a text may lag behind; it catches up before it guesses.
"""

from collections.abc import Sequence as ListOf
from time import perf_counter
from typing import NamedTuple

from tahr.engine.sampling.sampler import ReadyBatch
from tahr.engine.sampling.sampling_state import Sample, token_of
from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.draft_state import DraftState
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.speculation.costs import StepCosts
from tahr.engine.speculation.proposer import DraftRequest
from tahr.engine.step.draft_grammars import leaves_choice
from tahr.engine.step.drafts import drafted_request
from tahr.engine.step.steps import Steps
from tahr.errors import TahrError
from tahr.executor.protocol import Handle

MANY_TOKENS = 64  # size of a pass that tells the cost of a token


class DraftModelProposer:
    """Guesses with a model of its own; at most `n_chunk` tokens of texts are caught up with before one step.

    A guess is sampled as the request samples, with the random number of its token: where both models agree on the
    distribution they agree on the token.
    """

    prior = 0.7
    follows = False
    stays_on_device = True  # a pass may read what the one before it sampled, where steps overlap

    def __init__(self, steps: Steps, n_chunk: int):
        self.steps = steps
        self._n_chunk = n_chunk
        self._costs = StepCosts()
        self._hashes: dict[int, bytes] = {}  # block hash of the text that each page was computed for

    def may_propose(self, seq: Sequence) -> bool:
        return True

    def pass_seconds(self, n_seqs: int) -> float:
        return self._costs.seconds(n_seqs)

    def first_seconds(self, seq: Sequence) -> float:
        """The time to compute the text it has missed, before its first draft."""
        return self._costs.seconds(len(seq.tokens) - state_of(seq).n_drafted)

    def warm_next(self) -> bool:
        return self.steps.warm_next()

    def computed(self, work: StepWork) -> None:
        """Nothing: a draft model reads texts alone, and catches up when it guesses."""

    def propose(self, requests: ListOf[DraftRequest]) -> None:
        began = perf_counter()
        n_first = self.steps.sizes.n_first_runs
        work = self._catch_up(requests)
        n_tokens = sum(work.n_tokens)
        depth = 0
        drafting = [request for request, item in zip(requests, work, strict=False) if item.samples]
        passes: list[DraftPass] = []  # whose tokens are not collected yet
        ended: set[int] = set()  # the ids of sequences whose drafts have come to an end
        while work:
            handle = self._run(work, depth)
            depth += 1
            if drafting:
                passes.append(self._sample([seq for seq, _ in drafting], handle, len(passes)))
            if not all(each.known_to_device for each in passes):
                self._collect(passes, ended)
            drafting = [each for each in drafting if depth < each.n_most and each.sequence.id not in ended]
            work = StepWork()
            for seq, _ in drafting:
                self._add_next(work, seq, depth)
        self._collect(passes, ended)
        for seq, _ in requests:
            if seq.ahead.drafts:
                self._note_drafts(seq)
        if self.steps.sizes.n_first_runs == n_first:  # there was no plan to record or capture
            self._measure(len(requests), n_tokens, depth, perf_counter() - began)

    def _run(self, work: StepWork, depth: int) -> Handle:
        """Begin a pass; `depth` passes of the same guesses came before it."""
        return self.steps.run(self.steps.fill(work))

    def _add_next(self, work: StepWork, seq: Sequence, depth: int) -> None:
        """Let the next pass go on from the last draft of a sequence."""
        work.add(seq, len(seq.tokens) + depth - 1, 1, True, 1)

    def _note_drafts(self, seq: Sequence) -> None:
        """The drafts of a sequence are made."""
        state_of(seq).n_drafted = len(seq.tokens) + len(seq.ahead.drafts) - 1

    def _measure(self, n_seqs: int, n_tokens: int, n_passes: int, seconds: float) -> None:
        """Note what a pass takes, or a token of a text that was caught up with: the first pass had so many tokens."""
        if n_tokens <= 2 * n_seqs:
            self._costs.measure(n_seqs, seconds / max(1, n_passes))
        elif n_tokens >= MANY_TOKENS:
            self._costs.token_s = max(0.0, seconds - (n_passes - 1) * self._costs.seconds(n_seqs)) / n_tokens

    def _catch_up(self, requests: ListOf[DraftRequest]) -> StepWork:
        """The tokens that the draft model has not computed yet, as many as one step may hold."""
        work = StepWork()
        n_left = self._n_chunk
        for seq, _ in requests:
            state = state_of(seq)
            self._note_pages(seq, state)
            n_behind = len(seq.tokens) - state.n_drafted
            n = min(n_behind, n_left)
            if not n:
                break
            work.add(seq, state.n_drafted, n, n == n_behind, int(n == n_behind))
            n_left -= n
            state.n_drafted += n
        return work

    def _sample(self, drafting: list[Sequence], handle: Handle, n_unknown: int) -> "DraftPass":
        """Begin to sample a token for each sequence, as if its drafts and `n_unknown` more were its own."""
        requests = [drafted_request(seq, len(seq.ahead.drafts)) for seq in drafting]
        lengths = [len(seq.tokens) + len(seq.ahead.drafts) + n_unknown for seq in drafting]
        sampler = self.steps.sampler
        executor = self.steps.executor
        slots = [seq.ahead.token_slot for seq in drafting]
        ready = sampler.finish(sampler.prepare(requests, list(range(len(drafting)))), lengths, slots)
        executor.sample(handle, ready.rows)
        follows = any(request.sampling.follows_text or request.grammar for request in requests)
        overlaps = self.stays_on_device and executor.facts.overlaps
        known = overlaps and not follows and not ready.host_bound and all(slots)
        return DraftPass(drafting, handle, ready, known)

    def _collect(self, passes: list["DraftPass"], ended: set[int]) -> None:
        """Add the tokens of some passes to the drafts of their sequences, up to an end of text or one that failed."""
        for sequences, handle, ready, _ in passes:
            sampled = self.steps.executor.collect(handle).sampled
            assert sampled
            add_drafts(sequences, ready.results(sampled), ended)
        passes.clear()

    # ---- texts without drafts ---------------------------------------------------------------------------------

    def follow(self, seq: Sequence) -> None:
        """Compute all of a text, so that its pages hold it for both models."""
        seq.ahead.draft_state = DraftState(self.prior)
        while seq.ahead.draft_state.n_drafted < len(seq.tokens):
            self.steps.run(self.steps.fill(self._catch_up([DraftRequest(seq, 0)])))

    def adopt(self, seq: Sequence) -> None:
        """The pages of a sequence hold all of its text for both models already: those that are full can be found."""
        seq.ahead.draft_state = DraftState(self.prior, n_drafted=len(seq.tokens))
        self._note_pages(seq, seq.ahead.draft_state)

    # ---- pages of the prefix cache ----------------------------------------------------------------------------

    def _note_pages(self, seq: Sequence, state: DraftState) -> None:
        """Note which text the full pages were computed for. A sequence that has just begun looks for its own there."""
        hashes = seq.memory.hashes
        pages = seq.memory.tables[0].pages
        size = self.steps.executor.facts.memory.page_size
        if hashes is None:
            return
        while not state.n_drafted % size and state.n_noted * size == state.n_drafted < len(seq.tokens) - size:
            if self._hashes.get(pages[state.n_noted]) != hashes.of(seq.tokens, state.n_noted):
                break
            state.n_drafted += size
            state.n_noted += 1
        for place in range(state.n_noted, min(state.n_drafted, len(seq.tokens)) // size):
            self._hashes[pages[place]] = hashes.of(seq.tokens, place)
            state.n_noted = place + 1


class DraftPass(NamedTuple):
    """Tokens that a pass of the draft model samples."""

    sequences: list[Sequence]
    handle: Handle
    ready: ReadyBatch  # samples of the step
    known_to_device: bool  # the next pass may refer to them before they are collected


def add_drafts(sequences: ListOf[Sequence], tokens: ListOf[Sample], ended: set[int]) -> None:
    """Add a token to the drafts of each sequence that has not come to an end."""
    for seq, sampled in zip(sequences, tokens, strict=True):
        if isinstance(sampled, TahrError):
            ended.add(seq.id)
        elif seq.id not in ended:
            token = token_of(sampled)
            seq.set_drafts([*seq.ahead.drafts, token])
            if token in seq.reply.ends or not leaves_choice(seq, len(seq.ahead.drafts)):
                ended.add(seq.id)


def state_of(seq: Sequence) -> DraftState:
    assert seq.ahead.draft_state
    return seq.ahead.draft_state
