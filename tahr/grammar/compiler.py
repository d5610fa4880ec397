"""Compiles grammars for one model: within limits, a few at a time, each only once while it is in use."""

import importlib.util
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from tahr.errors import GrammarBusy, GrammarError
from tahr.grammar.source import llguidance_text
from tahr.grammar.spec import Grammar
from tahr.grammar.state import GrammarState
from tahr.grammar.trial_process import LIMITS, TrialProcess, first_sentence
from tahr.grammar.vocabulary import GrammarVocabulary
from tahr.text.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tahr import _native as native

MAX_CACHED = 128  # grammars
MAX_CACHED_BYTES = 8 << 20  # of their sources
N_AT_ONCE = 2  # compilations
PATIENCE_S = 30.0  # how long one waits for others
MAX_SEEN = 4096  # tokens from which a matcher may learn before others are copied from it: its lexer grows by them


class CompiledGrammar:
    """A grammar ready for use; every sequence follows it by a matcher of its own.

    A matcher learns on its way: the states of its lexer are found once. So new ones are copies of the one that has
    learned most among those whose sequences have ended.
    """

    def __init__(self, vocabulary: GrammarVocabulary, matcher: "native.GrammarMatcher"):
        self.vocabulary, self._matcher = vocabulary, matcher  # at the beginning

    def state(self, after: tuple[int, ...] = ()) -> GrammarState:
        """The state at the beginning of a text; see `SamplingParams.grammar_after`."""
        return GrammarState(self, after)

    def new_matcher(self) -> "native.GrammarMatcher":
        return self._matcher.copy()

    def learn(self, matcher: "native.GrammarMatcher") -> None:
        """Keep it, if it knows more than the one kept."""
        if self._matcher.n_seen < matcher.n_seen <= MAX_SEEN and not matcher.busy and matcher.reset():
            self._matcher = matcher


class GrammarCompiler:
    """Threads share it. A compilation takes milliseconds as a rule, so none of them belongs on an engine's thread."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._lock = threading.Lock()  # of the cache
        self._building = threading.Lock()  # of the vocabulary's index
        self._cache: OrderedDict[Grammar, CompiledGrammar | GrammarError] = OrderedDict()
        self._places = threading.BoundedSemaphore(N_AT_ONCE)
        self._idle: list[TrialProcess] = []

    @cached_property
    def vocabulary(self) -> GrammarVocabulary:
        return GrammarVocabulary(self._tokenizer)

    def state_at_once(self, grammar: Grammar, after: tuple[int, ...] = ()) -> GrammarState | None:
        """The same as `state`, if nothing need be compiled for it; else None."""
        found = self._lookup(grammar)
        return None if found is None else checked(found).state(after)

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """The grammar, compiled now or before; an error says what cannot be compiled."""
        found = self._lookup(grammar)
        if found is None:
            with self._place() as trial:
                found = self._lookup(grammar) or self._insert(grammar, self._compiled(grammar, trial))
        return checked(found)

    def state(self, grammar: Grammar, after: tuple[int, ...] = ()) -> GrammarState:
        """The state of a sequence at the beginning of a grammar."""
        return self.compile(grammar).state(after)

    def close(self) -> None:
        """End the processes."""
        while self._idle:
            self._idle.pop().close()

    def _compiled(self, grammar: Grammar, trial: TrialProcess) -> CompiledGrammar | GrammarError:
        try:
            check_installed()
            text = llguidance_text(grammar, self._special_ids.get)
            trial.check(text)
            with self._building:
                vocabulary = self.vocabulary
                index = vocabulary.index
            return CompiledGrammar(vocabulary, matcher_of(index, text))
        except GrammarError as error:
            return error

    @cached_property
    def _special_ids(self) -> dict[str, int]:
        tokenizer = self._tokenizer
        return {tokenizer.piece(token): token for token in range(tokenizer.n_vocab) if tokenizer.is_special(token)}

    # ---- the cache --------------------------------------------------------------------------------------------

    def _lookup(self, grammar: Grammar) -> CompiledGrammar | GrammarError | None:
        with self._lock:
            found = self._cache.get(grammar)
            if found:
                self._cache.move_to_end(grammar)
            return found

    def _insert(self, grammar: Grammar, made: CompiledGrammar | GrammarError) -> CompiledGrammar | GrammarError:
        with self._lock:
            self._cache[grammar] = made
            while len(self._cache) > MAX_CACHED or self._n_bytes > MAX_CACHED_BYTES:
                self._cache.popitem(last=False)
        return made

    @property
    def _n_bytes(self) -> int:
        return sum(len(grammar.source) for grammar in self._cache)

    @contextmanager
    def _place(self) -> Iterator[TrialProcess]:
        """One of the places to compile in, with a process to try grammars out in."""
        if not self._places.acquire(timeout=PATIENCE_S):
            raise GrammarBusy("Other grammars are still being compiled: try again in a moment.")
        try:
            trial = self._idle.pop() if self._idle else TrialProcess()
            yield trial
            self._idle.append(trial)
        finally:
            self._places.release()


def checked(found: CompiledGrammar | GrammarError) -> CompiledGrammar:
    """What was compiled; raises an error of its own where it did not compile."""
    if isinstance(found, GrammarError):
        raise GrammarError(str(found))
    return found


def check_installed() -> None:
    if importlib.util.find_spec("llguidance") is None:
        raise GrammarError("Grammars need the package llguidance, which is not installed: pip install llguidance.")
    if importlib.util.find_spec("tahr._native") is None:
        raise GrammarError("Grammars need Tahr's native module, which was not built: install Tahr with pip.")


def matcher_of(index: "native.GrammarIndex", text: str) -> "native.GrammarMatcher":
    """A matcher at the beginning of a text."""
    from tahr import _native as native

    matcher = native.GrammarMatcher(index, text, LIMITS)
    first = matcher.copy()
    first.mask()
    if message := matcher.error() or first.error():
        raise GrammarError(f"The grammar does not compile: {first_sentence(message)}")
    return matcher
