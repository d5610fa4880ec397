"""Prompt lookup: what followed the last few tokens when they stood in the text before is guessed to follow again."""

from collections.abc import Sequence as ListOf

from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.sequences.token_buffer import TokenBuffer
from tahr.engine.speculation.proposer import DraftRequest


class NgramProposer:
    """Guesses from the sequence's own text."""

    prior = 0.6
    follows = False

    def may_propose(self, seq: Sequence) -> bool:
        return bool(self._buffer(seq).continuation(1))

    def pass_seconds(self, n_seqs: int) -> float:
        return 0.0

    def first_seconds(self, seq: Sequence) -> float:
        return 0.0

    def computed(self, work: StepWork) -> None:
        """Nothing: texts are all it reads."""

    def warm_next(self) -> bool:
        return False

    def propose(self, requests: ListOf[DraftRequest]) -> None:
        for seq, n_most in requests:
            seq.set_drafts(self._buffer(seq).continuation(n_most))

    def _buffer(self, seq: Sequence) -> TokenBuffer:
        state = seq.ahead.draft_state
        assert state
        if state.buffer is None:
            state.buffer = TokenBuffer()
        state.buffer.follow(seq.tokens)
        return state.buffer
