"""Fills the masks of a batch on other threads, so that the forward pass need not wait for them."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

from tahr.errors import GrammarError
from tahr.grammar.state import GrammarState
from tahr.grammar.vocabulary import Words

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

MAX_THREADS = 16

MaskedRow = tuple[int, GrammarState]  # a row of the masks, and the state that allows its tokens


def by_lexer(rows: Sequence[MaskedRow]) -> list[MaskedRow]:
    """The rows in the order to fill them: states that share a lexer take turns, so they should be one thread's."""
    return sorted(rows, key=lambda row: row[1].lexer)


class MaskJob:
    """Masks that are being filled."""

    __slots__ = ("_future", "_rows")

    def __init__(self, rows: Sequence[MaskedRow], future: "Future[None] | None"):
        self._rows, self._future = rows, future

    def wait(self) -> dict[int, GrammarError]:
        """Wait for the masks; the rows that have none, because their grammar cannot go on, and why."""
        if self._future:
            self._future.result()
        return {row: state.error() for row, state in self._rows if state.matcher.is_error()}


class MaskFiller:
    """The threads that fill masks; they start with the first grammar."""

    @cached_property
    def _executor(self) -> "LLExecutor":
        from llguidance import LLExecutor

        return LLExecutor(num_threads=min(MAX_THREADS, os.cpu_count() or 1))

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """Waits for the executor, whose calls return when all masks of a job are filled."""
        return ThreadPoolExecutor(1, "tahr-masks")

    def begin(self, rows: Sequence[MaskedRow], masks: Words, goes_on: bool = False) -> MaskJob:
        """Begin to fill rows of `masks`, each by the state beside it; see `by_lexer` for their order.

        A caller that `goes_on` in Python, rather than in code without the interpreter's lock, waits until the threads
        have begun: they would not get the lock otherwise.
        """
        active = [(row, state) for row, state in rows if state.active]
        for row, state in rows:
            if not state.active:
                masks[row] = state.free_mask
        matchers = [(state.matcher, row) for row, state in active]
        if not matchers:
            return MaskJob(active, None)
        begun = threading.Lock()
        begun.acquire()
        future = self._threads.submit(self._fill, matchers, masks, begun)
        if goes_on:
            begun.acquire()
        return MaskJob(active, future)

    def _fill(self, matchers: "list[tuple[LLMatcher, int]]", masks: Words, begun: threading.Lock) -> None:
        n_rows, n_words = masks.shape
        begun.release()
        self._executor.unsafe_compute_mask_ptr(matchers, masks.ctypes.data, n_words * 4, n_rows)
