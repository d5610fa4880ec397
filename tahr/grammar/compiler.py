"""Compiles grammars for one model: within limits, a few at a time, each only once while it is in use."""

import importlib.util
import threading
from collections import OrderedDict
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from tahr.errors import GrammarError
from tahr.grammar.spec import Grammar
from tahr.grammar.state import GrammarState
from tahr.grammar.vocabulary import GrammarVocabulary
from tahr.grammar.workers import (
    CLOSED,
    LIMITS,
    N_QUICK,
    N_SLOW,
    QUICK_CPU_S,
    SLOW_CPU_S,
    TOO_MUCH,
    CompileJob,
    ComputedTooLong,
    Lane,
    VocabularyFacts,
    Worker,
    first_sentence,
)
from tahr.text.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tahr import _native as native

MAX_CACHED = 128  # grammars
MAX_CACHED_BYTES = 8 << 20  # limit on their sources
# Seconds that a request may compute for its grammar: in one step, for every token, and beyond that altogether. Grammars
# that are no attack take a fraction of a millisecond for a token, those of single characters a few. An over-long step
# counts if it comes again before so many tokens of the grammar: a machine may have stood still.
BUDGET = {"step_s": 0.15, "token_s": 0.004, "beyond_s": 0.25, "n_between": 4096}
MAX_SEEN = 4096  # tokens from which a matcher may learn before others are copied from it: its lexer grows by them


class CompiledGrammar:
    """A grammar ready for use; every sequence follows it by a matcher of its own.

    A matcher learns on its way: the states of its lexer are found once. So new ones are copies of the one that has
    learned most among those whose sequences have ended.
    """

    def __init__(self, vocabulary: GrammarVocabulary, matcher: "native.GrammarMatcher"):
        self.vocabulary = vocabulary
        self._matcher = matcher  # state at the beginning
        self._is_given_up = False

    def state(self, after: tuple[int, ...] = ()) -> GrammarState:
        """The state at the beginning of a text; see `SamplingParams.grammar_after`."""
        if self._is_given_up:
            raise GrammarError("Following this grammar takes too much time, as it has shown: simplify it.")
        return GrammarState(self, after)

    def give_up(self) -> None:
        """Refuse it from now on: following it takes too much time."""
        self._is_given_up = True

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
        self._lock = threading.Lock()  # guards the cache
        self._building = threading.Lock()  # guards the vocabulary's index
        self._cache: OrderedDict[Grammar, CompiledGrammar | GrammarError] = OrderedDict()
        self._jobs: set[CompileJob] = set()
        facts = VocabularyFacts(tokenizer.special_ids, tokenizer.n_vocab)
        self._lanes = (Lane(facts, N_QUICK, QUICK_CPU_S), Lane(facts, N_SLOW, SLOW_CPU_S))

    @cached_property
    def vocabulary(self) -> GrammarVocabulary:
        return GrammarVocabulary(self._tokenizer)

    def new_job(self) -> CompileJob:
        """For `compile`, where somebody else may end it; its time begins now."""
        job = CompileJob()
        self._jobs.add(job)
        return job

    def state_at_once(self, grammar: Grammar, after: tuple[int, ...] = ()) -> GrammarState | None:
        """The state, if nothing need be compiled for it; else None."""
        found = self._lookup(grammar)
        return None if found is None else checked(found).state(after)

    def compile(self, grammar: Grammar, job: CompileJob | None = None) -> CompiledGrammar:
        """The grammar, compiled now or before; an error says what cannot be compiled, or that time was over."""
        job = job or self.new_job()
        try:
            return checked(self._lookup(grammar) or self._compiled(grammar, job))
        finally:
            self._jobs.discard(job)
            job.close()

    def state(self, grammar: Grammar, after: tuple[int, ...] = (), job: CompileJob | None = None) -> GrammarState:
        """The state of a sequence at the beginning of a grammar."""
        return self.compile(grammar, job).state(after)

    def close(self) -> None:
        """End the processes, and the jobs they work for."""
        for job in list(self._jobs):
            job.end(CLOSED)
        for lane in self._lanes:
            lane.close()

    def _compiled(self, grammar: Grammar, job: CompileJob) -> CompiledGrammar | GrammarError:
        """The grammar, or what is wrong with it, which stays so. That the machine was too busy is raised, not kept."""
        try:
            check_installed()
            for lane in self._lanes:
                with suppress(ComputedTooLong), lane.worker(job) as worker:
                    # Another job may have compiled it while this one waited.
                    return self._lookup(grammar) or self._insert(grammar, self._made(grammar, worker, job))
            raise GrammarError(TOO_MUCH)
        except GrammarError as error:
            return self._insert(grammar, error)

    def _made(self, grammar: Grammar, worker: Worker, job: CompileJob) -> CompiledGrammar:
        text = worker.text_of(grammar.kind, grammar.source, job)
        with self._building:
            vocabulary = self.vocabulary
            index = vocabulary.index
        return CompiledGrammar(vocabulary, matcher_of(index, text))

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


def checked(found: CompiledGrammar | GrammarError) -> CompiledGrammar:
    """A compiled grammar; raises a fresh error where it did not compile."""
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

    matcher = native.GrammarMatcher(index, text, LIMITS, BUDGET)
    if message := matcher.error() or first_mask_error(matcher):
        raise GrammarError(f"The grammar does not compile: {first_sentence(message)}")
    return matcher


def first_mask_error(matcher: "native.GrammarMatcher") -> str:
    """The error of computing the first mask; one that took too long is computed again, here and not beside requests."""
    first = matcher.copy()
    first.mask()
    if first.n_long_steps and not first.error():
        first = matcher.copy()
        first.mask()
    return first.error()
