"""Sources of guesses: one interface for all proposers."""

from collections.abc import Sequence as ListOf
from typing import NamedTuple, Protocol

from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.sequence import Sequence


class DraftRequest(NamedTuple):
    """How many tokens to guess for a sequence, at most."""

    sequence: Sequence
    n_most: int


class Proposer(Protocol):
    """Guesses the next tokens of sequences. A wrong guess costs time, never a token."""

    prior: float  # probability of a guess, as long as nothing is known
    follows: bool  # whether it is told of every step

    def may_propose(self, seq: Sequence) -> bool:
        """Whether there would be a guess, as far as the tokens that are known tell."""

    def pass_seconds(self, n_seqs: int) -> float:
        """The time to draft one token more for each of `n_seqs` sequences."""

    def first_seconds(self, seq: Sequence) -> float:
        """The time to draft one token for a sequence without recent drafts."""

    def propose(self, requests: ListOf[DraftRequest]) -> None:
        """Give each sequence its drafts; none where there is nothing to guess."""

    def computed(self, work: StepWork) -> None:
        """A step of the model was launched; the next one may write over what it stored."""

    def warm_next(self) -> bool:
        """Prepare one more kind of step before it is needed; False if none is left."""
