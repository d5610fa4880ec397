"""The speculator's state of one sequence."""

from dataclasses import dataclass, field

from tahr.engine.sequences.token_buffer import TokenBuffer
from tahr.grammar.state import GrammarState

MEMORY = 0.15  # weight of the latest guess in the running mean


@dataclass(slots=True)
class DraftState:
    """How well guesses have done for a sequence, and what proposers keep of it."""

    acceptance: float  # running mean: how likely a guess is right if those before it are
    n_since_draft: int = 0  # tokens it got since something was last guessed
    buffer: TokenBuffer | None = None  # its text, for looking up earlier continuations of the same words
    n_drafted: int = 0  # tokens whose keys and values the draft model has stored
    n_noted: int = 0  # full pages of them that others can find
    grammars: list[GrammarState] = field(default_factory=list)  # grammar states after each of its drafts

    def learn(self, n_proposed: int, n_right: int, n_tokens: int) -> None:
        """Count guesses: those that were right, and the first wrong one; nothing is known of those after it.

        `n_tokens` is the length of the text with those that were right.
        """
        self.n_drafted = min(self.n_drafted, n_tokens)
        for _ in range(n_right):
            self.acceptance += MEMORY * (1 - self.acceptance)
        if n_right < n_proposed:
            self.acceptance -= MEMORY * self.acceptance
        self.n_since_draft = 0
