"""A draft model: a smaller model of the same vocabulary guesses token after token.

Its keys and values lie in the pages of the model it guesses for: pages are taken, shared, copied and released for both
at once. What it has computed of a text may lag behind; it catches up before it guesses.
"""

from collections.abc import Sequence as ListOf
from time import perf_counter

import numpy as np

from tahr.backends.api import Tensor
from tahr.engine.runner import Runner
from tahr.engine.sampler import SampledToken, Sampler
from tahr.engine.sequence import Sequence
from tahr.engine.speculation.costs import StepCosts
from tahr.engine.speculation.proposer import DraftRequest
from tahr.engine.speculation.state import DraftState
from tahr.engine.speculation.verify import drafted_request
from tahr.engine.work import WorkColumns, WorkItem
from tahr.errors import TahrError


class DraftModelProposer:
    """Guesses with a model of its own; at most `n_chunk` tokens of texts are caught up with before one step.

    A guess is sampled as the request samples, with the random number of its token: where both models agree on the
    distribution they agree on the token.
    """

    prior = 0.7

    def __init__(self, runner: Runner, n_chunk: int):
        self.runner = runner
        self._n_chunk = n_chunk
        self._sampler = Sampler(runner.backend, runner.n_vocab, aside=True)
        self._costs = StepCosts()
        self._hashes: dict[int, bytes] = {}  # by page: the block hash of the text it was computed for

    def may_propose(self, seq: Sequence) -> bool:
        return True

    def pass_seconds(self, n_seqs: int) -> float:
        return self._costs.seconds(n_seqs)

    def propose(self, requests: ListOf[DraftRequest]) -> None:
        work = self._catch_up(requests)
        drafting = [request for request, item in zip(requests, work, strict=False) if item.samples]
        depth = 0
        while work:
            began, n_tokens = perf_counter(), sum(item.n_tokens for item in work)
            rows = self.runner.replay(WorkColumns(*zip(*work, strict=True)))
            depth += 1
            drafting = self._sample(drafting, rows, depth)
            if n_tokens <= 2 * len(work):  # not a prompt to catch up with
                self._costs.measure(n_tokens, perf_counter() - began)
            work = [WorkItem(seq, len(seq.tokens) + depth - 1, 1, True, 1) for seq, _ in drafting]
        for seq, _ in requests:
            if seq.drafts:
                state_of(seq).n_drafted = len(seq.tokens) + len(seq.drafts) - 1

    def _catch_up(self, requests: ListOf[DraftRequest]) -> list[WorkItem]:
        """The tokens that the draft model has not computed yet, as many as one step may hold."""
        work, n_left = [], self._n_chunk
        for seq, _ in requests:
            state = state_of(seq)
            self._note_pages(seq, state)
            n_behind = len(seq.tokens) - state.n_drafted
            n = min(n_behind, n_left)
            if not n:
                break
            work.append(WorkItem(seq, state.n_drafted, n, n == n_behind, int(n == n_behind)))
            n_left -= n
            state.n_drafted += n
        return work

    def _sample(self, drafting: list[DraftRequest], rows: Tensor, depth: int) -> list[DraftRequest]:
        """Add a token to the drafts of each sequence; those that go on."""
        tokens = self._tokens([seq for seq, _ in drafting], rows) if drafting else []
        going = []
        for request, sampled in zip(drafting, tokens, strict=True):
            if isinstance(sampled, TahrError):
                continue  # the draft model says nonsense: nothing is guessed
            request.sequence.set_drafts([*request.sequence.drafts, sampled.token])
            if depth < request.n_most and sampled.token not in request.sequence.ends:
                going.append(request)
        return going

    def _tokens(self, drafting: list[Sequence], rows: Tensor) -> list[SampledToken | TahrError]:
        """A sample for each sequence, as if its drafts so far were its own."""
        requests = [drafted_request(seq, len(seq.drafts)) for seq in drafting]
        lengths = np.array([len(seq.tokens) + len(seq.drafts) for seq in drafting], np.int32)
        batch = self._sampler.prepare(requests, list(range(len(drafting))))
        return self._sampler.launch(batch, rows, lengths).collect()

    # ---- pages of the prefix cache ----------------------------------------------------------------------------

    def _note_pages(self, seq: Sequence, state: DraftState) -> None:
        """Note which text the full pages were computed for. A sequence that has just begun looks for its own there."""
        hashes, pages, size = seq.hashes, seq.tables[0].pages, self.runner.kv.page_size
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


def state_of(seq: Sequence) -> DraftState:
    assert seq.draft_state
    return seq.draft_state
