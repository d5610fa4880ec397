"""Compiles grammars for one model: within limits, a few at a time, each only once while it is in use."""

import importlib.util
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING
from weakref import WeakSet

from tahr.errors import GrammarBusy, GrammarError
from tahr.grammar.source import llguidance_text
from tahr.grammar.spec import Grammar
from tahr.grammar.state import GrammarState
from tahr.grammar.trial_process import LIMITS, TrialProcess, first_sentence
from tahr.grammar.vocabulary import GrammarVocabulary
from tahr.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_CACHED = 128  # grammars
MAX_CACHED_BYTES = 8 << 20  # of their sources
N_AT_ONCE = 2  # compilations
PATIENCE_S = 30.0  # how long one waits for others
STATES_PER_LEXER = 4  # states of a grammar that share a lexer, before there is another
MAX_LEXERS = min(16, os.cpu_count() or 1)  # of one grammar: each takes memory, and time to compile


class CompiledGrammar:
    """A grammar ready for use; every sequence follows it by a state of its own.

    Copies of a matcher share one lexer, which serves one of them at a time. So a grammar that many sequences follow is
    compiled more than once, or threads would wait for each other instead of filling its masks side by side.
    """

    def __init__(self, vocabulary: GrammarVocabulary, make: Callable[[], "LLMatcher"]):
        self._vocabulary, self._make = vocabulary, make
        self._lock = threading.Lock()
        self._lexers = [SharedLexer(make())]
        self._growing = False

    @property
    def crowded(self) -> bool:
        """Whether the next state compiles the grammar once more; while one does, others take what there is."""
        full = all(lexer.n_states() >= STATES_PER_LEXER for lexer in self._lexers)
        return full and len(self._lexers) < MAX_LEXERS and not self._growing

    def state(self, after: tuple[int, ...] = (), may_compile: bool = True) -> GrammarState:
        """The state at the beginning of a text; see `SamplingParams.grammar_after`."""
        with self._lock:
            grows = may_compile and self.crowded
            self._growing |= grows
        if grows:
            self._grow()
        with self._lock:
            lexer = min(self._lexers, key=SharedLexer.n_states)
            state = GrammarState(self._vocabulary, lexer.matcher.deep_copy(), after, id(lexer))
            lexer.states.add(state)
        return state

    def _grow(self) -> None:
        try:
            self._lexers.append(SharedLexer(self._make()))
        finally:
            self._growing = False


@dataclass(frozen=True, eq=False)
class SharedLexer:
    """States whose matchers share a lexer."""

    matcher: "LLMatcher"  # at the beginning
    states: "WeakSet[GrammarState]" = field(default_factory=WeakSet)

    def n_states(self) -> int:
        return len(self.states)


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
        if found is None or (isinstance(found, CompiledGrammar) and found.crowded):
            return None
        return checked(found).state(after, may_compile=False)

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
            text = llguidance_text(grammar, self._is_special)
            trial.check(text)
            with self._building:
                vocabulary = self.vocabulary
                index = vocabulary.index
            return CompiledGrammar(vocabulary, partial(matcher_of, index, text))
        except GrammarError as error:
            return error

    def _is_special(self, name: str) -> bool:
        return name in self._special_names

    @cached_property
    def _special_names(self) -> frozenset[str]:
        tokenizer = self._tokenizer
        return frozenset(tokenizer.piece(token) for token in range(tokenizer.n_vocab) if tokenizer.is_special(token))

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


def matcher_of(index: "LLTokenizer", text: str) -> "LLMatcher":
    """A matcher at the beginning of a text."""
    from llguidance import LLMatcher, LLParserLimits

    matcher = LLMatcher(index, text, log_level=0, limits=LLParserLimits(**LIMITS))  # type: ignore[arg-type]
    first = matcher.deep_copy()
    first.compute_bitmask()
    if message := matcher.get_error() or first.get_error():
        raise GrammarError(f"The grammar does not compile: {first_sentence(message)}")
    return matcher
