"""Where one sequence stands in its grammar."""

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from tahr.errors import GrammarError
from tahr.grammar.vocabulary import GrammarVocabulary, Words

if TYPE_CHECKING:
    from tahr import _native as native

Flags = NDArray[np.bool_]


class MatcherSource(Protocol):
    """A compiled grammar, as its states see it."""

    vocabulary: GrammarVocabulary

    def new_matcher(self) -> "native.GrammarMatcher":
        """A matcher at the beginning."""

    def give_up(self) -> None:
        """Refuse the grammar from now on: following it takes too much time."""

    def learn(self, matcher: "native.GrammarMatcher") -> None:
        """Take the matcher of a state that nothing uses any more."""


class GrammarState:
    """Follows the tokens a sequence generates. It is free until it has generated the tokens `after` in a row.

    While its mask is filled on another thread, the matcher is that thread's: nothing else may call it. It is made when
    it is needed: a matcher that has learned much takes megabytes, and hundreds of requests may wait.
    """

    __slots__ = ("_after", "_before", "_has_matcher", "_n_ends", "_source", "active", "matcher", "vocabulary")

    def __init__(self, source: MatcherSource, after: tuple[int, ...] = ()):
        self._source = source
        self.vocabulary = source.vocabulary
        self._has_matcher = False
        self._after = after
        self._before: list[int] = []  # the tokens generated before the grammar began
        self._n_ends = 0  # end tokens after a complete text, which it does not count
        self.active = not after  # whether the grammar has begun

    def __getattr__(self, name: str) -> "native.GrammarMatcher":
        """Python asks here for the matcher while there is none, and not any more when there is one."""
        if name != "matcher":
            raise AttributeError(name)
        self.matcher: native.GrammarMatcher = self._source.new_matcher()
        self._has_matcher = True
        return self.matcher

    def __del__(self) -> None:
        if self._has_matcher:
            self._source.learn(self.matcher)

    @property
    def finished(self) -> bool:
        """Whether the text is complete and nothing can follow."""
        return self.matcher.finished

    @property
    def is_matching(self) -> bool:
        """Whether the matcher takes the next token."""
        return self.active and not self.matcher.finished

    @property
    def free_mask(self) -> Words:
        """The tokens allowed before the grammar begins."""
        return self.vocabulary.all_but_ends

    def fork(self) -> "GrammarState":
        """A copy for another sequence."""
        other = GrammarState(self._source, self._after)
        if self._has_matcher:
            other.matcher = self.matcher.fork()
            other._has_matcher = True
        other._before = self._before.copy()
        other._n_ends = self._n_ends
        other.active = self.active
        return other

    def advance(self, token: int) -> None:
        """The sequence has this token next."""
        if not self.active:
            self._before.append(token)
            self.active = tuple(self._before[-len(self._after) :]) == self._after
        elif self.finished and token in self.vocabulary.eos_ids:
            self._n_ends += 1
        elif not self.matcher.consume(token):
            raise self.error()

    def rollback(self, n_tokens: int) -> None:
        """Forget the last tokens."""
        n_ends = min(n_tokens, self._n_ends)
        n_matched = min(n_tokens - n_ends, self.matcher.n_consumed)
        n_before = n_tokens - n_ends - n_matched
        assert n_before <= len(self._before), "a grammar cannot forget more tokens than it has seen"
        self._n_ends -= n_ends
        if n_before:
            del self._before[len(self._before) - n_before :]
            self.active = False
        if not self.matcher.rollback(n_matched):
            raise self.error()

    def allowed(self, n_vocab: int) -> Flags:
        """Which of so many tokens may come next; tokens that the tokenizer does not have never may."""
        if not self.active:
            words = self.free_mask
        else:
            words = np.frombuffer(self.matcher.mask(), "<u4")
            if self.matcher.error():
                raise self.error()
        found = np.zeros(n_vocab, bool)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: min(n_vocab, self.vocabulary.n_vocab)]
        found[: len(bits)] = bits
        return found

    def forced_tokens(self) -> list[int]:
        """The tokens that must come next, if the grammar leaves no choice."""
        return self.matcher.forced() if self.active else []

    def error(self) -> GrammarError:
        """Why the grammar cannot go on."""
        if self.matcher.is_over_budget:
            self._source.give_up()
        reason = self.matcher.error().splitlines()
        return GrammarError(f"The grammar cannot go on ({reason[0] if reason else 'unknown'}): simplify it.")
