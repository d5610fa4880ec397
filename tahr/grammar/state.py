"""Where one sequence stands in its grammar."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tahr.errors import GrammarError
from tahr.grammar.vocabulary import GrammarVocabulary, Words

if TYPE_CHECKING:
    from llguidance import LLMatcher


Flags = NDArray[np.bool_]


class GrammarState:
    """Follows the tokens a sequence generates. It is free until it has generated the tokens `after` in a row.

    While its mask is filled on another thread, the matcher is that thread's: nothing else may call it.
    """

    __slots__ = (
        "__weakref__", "_after", "_before", "_n_ends", "_n_matched", "active", "finished", "lexer", "matcher",
        "vocabulary",
    )  # fmt: skip

    def __init__(
        self, vocabulary: GrammarVocabulary, matcher: "LLMatcher", after: tuple[int, ...] = (), lexer: int = 0
    ):
        self.vocabulary, self.matcher = vocabulary, matcher
        self.lexer = lexer  # a number that states have in common if their matchers share a lexer
        self.finished = matcher.is_stopped()  # the text is complete and nothing can follow
        self._after = after
        self._before: list[int] = []  # the tokens generated before the grammar began
        self._n_matched = 0  # tokens the matcher has consumed
        self._n_ends = 0  # end tokens after a complete text, which it does not count
        self.active = not after  # whether the grammar has begun

    @property
    def free_mask(self) -> Words:
        """The tokens allowed before the grammar begins."""
        return self.vocabulary.all_but_ends

    def fork(self) -> "GrammarState":
        """The same state for another sequence."""
        other = GrammarState(self.vocabulary, self.matcher.deep_copy(), self._after, self.lexer)
        other._before = self._before.copy()
        other._n_matched, other._n_ends, other.active = self._n_matched, self._n_ends, self.active
        return other

    def advance(self, token: int) -> None:
        """The sequence has this token next."""
        if not self.active:
            self._before.append(token)
            self.active = tuple(self._before[-len(self._after) :]) == self._after
        elif token in self.vocabulary.eos_ids and self.finished:
            self._n_ends += 1
        elif self.matcher.consume_token(token):
            self._n_matched += 1
            self.finished = self.matcher.is_stopped()
        else:
            raise self.error()

    def rollback(self, n_tokens: int) -> None:
        """Forget the last tokens."""
        n_ends = min(n_tokens, self._n_ends)
        n_matched = min(n_tokens - n_ends, self._n_matched)
        n_before = n_tokens - n_ends - n_matched
        assert n_before <= len(self._before), "a grammar cannot forget more tokens than it has seen"
        self._n_ends -= n_ends
        self._n_matched -= n_matched
        if n_before:
            del self._before[len(self._before) - n_before :]
            self.active = False
        if not self.matcher.rollback(n_matched):
            raise self.error()
        self.finished = self.matcher.is_stopped()

    def allowed(self, n_vocab: int) -> Flags:
        """Which of so many tokens may come next; tokens that the tokenizer does not have never may."""
        if not self.active:
            words = self.free_mask
        else:
            words = np.frombuffer(self.matcher.compute_bitmask(), "<u4")
            if self.matcher.is_error():
                raise self.error()
        found = np.zeros(n_vocab, bool)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: min(n_vocab, self.vocabulary.n_vocab)]
        found[: len(bits)] = bits
        return found

    def forced_tokens(self) -> list[int]:
        """The tokens that must come next, if the grammar leaves no choice."""
        return self.matcher.compute_ff_tokens() if self.active else []

    def error(self) -> GrammarError:
        """Why the grammar cannot go on."""
        reason = self.matcher.get_error().splitlines()
        return GrammarError(f"The grammar cannot go on ({reason[0] if reason else 'unknown'}): simplify it.")
