"""Lets the grammars of a batch take their tokens, and fills its masks while the caller goes on."""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from tahr.errors import GrammarError
from tahr.grammar.state import GrammarState
from tahr.grammar.vocabulary import Words

if TYPE_CHECKING:
    from tahr import _native as native

MAX_THREADS = 8

MaskedRow = tuple[int, GrammarState]  # a row of the masks, and the state that allows its tokens
GrammarToken = tuple[GrammarState, int, bool]  # a token that a grammar has to take; whether forced ones are looked up
Forced = Sequence[int] | Exception  # tokens that a grammar forces, or why it cannot go on


class MaskJob:
    """Masks that are being filled."""

    __slots__ = ("_job", "_rows", "forced")

    def __init__(self, forced: list[Forced], rows: Sequence[MaskedRow], job: "native.GrammarJob | None"):
        self.forced = forced  # forced tokens after each token that was taken
        self._rows = rows
        self._job = job

    def wait(self) -> dict[int, GrammarError]:
        """Wait for the masks; the rows that have none, because their grammar cannot go on, and why."""
        failed = [self._rows[i] for i in self._job.wait()] if self._job else []
        return {row: state.error() for row, state in failed}


class MaskFiller:
    """The threads that fill masks; they start with the first grammar. Whoever waits for masks fills some, too."""

    @cached_property
    def _threads(self) -> "native.GrammarThreads":
        from tahr import _native as native

        return native.GrammarThreads(max(1, min(MAX_THREADS, (os.cpu_count() or 1) - 1)))

    def begin(self, rows: Sequence[MaskedRow], masks: Words, tokens: Sequence[GrammarToken] = ()) -> MaskJob:
        """Let grammars take tokens, and begin to fill rows of `masks`, each by the state beside it.

        Rows of grammars that force tokens get no mask: what is sampled from them does not count.
        """
        together: list[GrammarToken] = []
        alone: dict[int, Forced] = {}
        for place, each in enumerate(tokens):
            if each[0].is_matching:
                together.append(each)
            else:
                alone[place] = taken_alone(*each)
        active = [each for each in rows if each[1].active]
        if len(active) < len(rows):
            for row, state in rows:
                if not state.active:
                    masks[row] = state.free_mask
        job = self._begin(together, active, masks) if together or active else None
        forced = taken_together(together, job) if job else []
        for place, found in alone.items():
            forced.insert(place, found)
        return MaskJob(forced, active, job)

    def _begin(self, tokens: Sequence[GrammarToken], rows: Sequence[MaskedRow], masks: Words) -> "native.GrammarJob":
        return self._threads.begin(
            [state.matcher for state, _, _ in tokens],
            [token for _, token, _ in tokens],
            [wants_forced for _, _, wants_forced in tokens],
            [state.matcher for _, state in rows],
            [row for row, _ in rows],
            masks,
        )


def taken_together(tokens: Sequence[GrammarToken], job: "native.GrammarJob") -> list[Forced]:
    """Take the tokens on native threads; a result is the forced tokens, or an error of its grammar."""
    found = job.forced()
    if None in found:
        return [each[0].error() if forced is None else forced for each, forced in zip(tokens, found, strict=True)]
    return list(found)  # type: ignore[arg-type]


def taken_alone(state: GrammarState, token: int, wants_forced: bool) -> Forced:
    """Take a token of a grammar that has not begun, or whose text is complete."""
    try:
        state.advance(token)
    except GrammarError as error:
        return error
    return state.forced_tokens() if wants_forced and not state.finished else ()
