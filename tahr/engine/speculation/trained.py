"""A drafter that was trained for the model: it guesses from what the model's layers made of the text.

Entry p of a text is its token p + 1 beside the row of token p, so that a text has one entry less than tokens, and the
last one guesses the token to come. The entries' keys and values lie in the pages of the model, like those of a draft
model. Rows are there for a while only: `row_rings` says where, and this computes the entries before rows go.
"""

from collections.abc import Sequence as ListOf

from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.draft_state import DraftState
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.speculation.draft_model import DraftModelProposer, state_of
from tahr.engine.speculation.proposer import DraftRequest
from tahr.engine.speculation.row_rings import MOST_BEHIND, DrafterColumns, RowRings
from tahr.engine.step.steps import Steps
from tahr.executor.protocol import CHAINED, FOLLOWED, Handle

SHIFT = 1  # places between an entry and its token


class TrainedProposer(DraftModelProposer):
    """Guesses token after token, the first with a row of the model, the others with rows of its own."""

    prior = 0.7
    follows = True
    stays_on_device = False

    def __init__(self, steps: Steps, n_chunk: int, rings: RowRings, columns: DrafterColumns):
        super().__init__(steps, n_chunk)
        self._rings = rings
        self._columns = columns

    def may_propose(self, seq: Sequence) -> bool:
        return self._rings.take(seq) is not None

    def first_seconds(self, seq: Sequence) -> float:
        return self._costs.seconds(max(1, len(seq.tokens) - SHIFT - state_of(seq).n_drafted))

    # ---- entries of texts -------------------------------------------------------------------------------------

    def computed(self, work: StepWork) -> None:
        """Compute the entries whose rows the next steps would write over."""
        kept = [seq for seq in work.sequences if self._rings.ring(seq) and seq.ahead.draft_state and holds_pages(seq)]
        for seq in kept:
            self._share(seq)
        if not any(self._is_due(seq) for seq in kept):
            return
        while entries := self._next_entries(kept):
            self._run(entries, 0)

    def _is_due(self, seq: Sequence) -> bool:
        """Whether rows of a sequence go with the next step, or soon: the next chunk of a prompt leaves a gap behind
        rows that are not read yet."""
        goes_on = seq.scheduled < len(seq.tokens) - SHIFT
        behind = last_entry(seq) - state_of(seq).n_drafted
        return self._rings.has_passing(seq) or goes_on or behind >= MOST_BEHIND

    def _next_entries(self, kept: ListOf[Sequence]) -> StepWork:
        """Entries of texts up to the last but one, as many as one step may hold."""
        work = StepWork()
        n_left = self._n_chunk
        for seq in kept:
            state = state_of(seq)
            self._note_pages(seq, state)
            if self._rings.first_known(seq) - state.n_drafted > self._n_chunk:
                continue  # a long text that was computed without it: guesses will pay for it or not
            n = min(last_entry(seq) - state.n_drafted, n_left)
            if n > 0:
                work.add(seq, state.n_drafted, n, False, 0, SHIFT)
                state.n_drafted += n
                n_left -= n
        return work

    def _share(self, parent: Sequence) -> None:
        """Entries of a prompt count for all of its choices, which have its pages."""
        n = min(state_of(parent).n_drafted, parent.n_prompt - SHIFT)
        for fork in parent.queueing.forks:
            if fork.ahead.draft_state is None and fork.computed == parent.n_prompt and holds_pages(fork):
                fork.ahead.draft_state = DraftState(state_of(parent).acceptance, n_drafted=n)

    # ---- drafts -----------------------------------------------------------------------------------------------

    def _catch_up(self, requests: ListOf[DraftRequest]) -> StepWork:
        """The entries that are not computed yet, as many as one step may hold; the last one in any case."""
        work = StepWork()
        n_left = self._n_chunk
        for seq, _ in requests:
            state = state_of(seq)
            self._note_pages(seq, state)
            n_entries = len(seq.tokens) - SHIFT
            begin = min(state.n_drafted, n_entries - 1)
            n = min(n_entries - begin, n_left)
            if not n:
                break
            is_last = begin + n == n_entries
            work.add(seq, begin, n, is_last, int(is_last), SHIFT)
            n_left -= n
            state.n_drafted = begin + n
        return work

    def _add_next(self, work: StepWork, seq: Sequence, depth: int) -> None:
        work.add(seq, len(seq.tokens) - SHIFT + depth - 1, 1, True, 1, SHIFT)

    def _run(self, work: StepWork, depth: int) -> Handle:
        self._columns.chains = depth > 0
        handle = self.steps.run(self.steps.fill(work, output=CHAINED if depth else FOLLOWED))
        if not depth:
            for seq, begin, n, _, _ in work:
                self._rings.used(seq, begin + n)
        return handle

    def _note_drafts(self, seq: Sequence) -> None:
        """Entries of drafts are computed again with rows of the model, if they are right."""


def last_entry(seq: Sequence) -> int:
    """The last entry that a sequence has a row for or, of a whole text, its last one, which guesses are made from."""
    return min(seq.scheduled, len(seq.tokens) - SHIFT - 1)


def holds_pages(seq: Sequence) -> bool:
    """Whether a sequence has pages for what was computed of it: not if it has ended or was preempted."""
    return bool(seq.memory.tables and seq.memory.tables[0].pages)
