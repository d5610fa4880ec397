"""Beam search: the likeliest continuations, found by keeping the best few at every step."""

import math
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tahr.backends.api import Floats
from tahr.config import Range, check_ranges, whole
from tahr.engine.engine import Engine
from tahr.engine.sequences.sequence import Sequence
from tahr.errors import ConfigError
from tahr.grammar.state import GrammarState
from tahr.library.feeder import Feeder, LastRow


@dataclass(frozen=True, slots=True)
class BeamSearchConfig:
    """How wide and how long to search; a length penalty above 0 favours long texts, below 0 short ones."""

    beam_width: int = 4
    max_new_tokens: int = 256
    length_penalty: float = 1.0
    early_stopping: bool = True  # stop as soon as beam_width texts have ended

    RANGES: ClassVar[dict[str, Range]] = {
        "beam_width": whole(1, 256),
        "max_new_tokens": whole(0),
        "length_penalty": Range(-10, 10),
    }

    def __post_init__(self) -> None:
        check_ranges(self, self.RANGES)
        if not isinstance(self.early_stopping, bool):
            raise ConfigError(f"early_stopping is {self.early_stopping!r}, but it must be True or False.")


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A text the search found: the prompt and what was generated, an end token included."""

    tokens: tuple[int, ...]
    n_prompt: int
    logprob_sum: float = 0.0
    finished: bool = False

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    def score(self, length_penalty: float) -> float:
        """Order of hypotheses; 0 for one that generated nothing."""
        return scaled(self.logprob_sum, self.n_generated, length_penalty) if self.n_generated else 0.0

    def then(self, token: int, logprob_sum: float, finished: bool) -> "Hypothesis":
        return Hypothesis((*self.tokens, token), self.n_prompt, logprob_sum, finished)


class BeamForward(Protocol):
    """The model as the search sees it: beams are numbered, and each step replaces them all."""

    def begin(self, tokens: ListOf[int]) -> Floats:
        """The logits after a prompt, which becomes beam 0: [1, n_vocab]."""

    def extend(self, choices: ListOf[tuple[int, int]]) -> Floats:
        """New beams, each an old one (by number) and a token after it; their logits: [n, n_vocab]."""


def beam_search(
    forward: BeamForward,
    prompt: ListOf[int],
    config: BeamSearchConfig,
    is_eos: Callable[[int], bool],
    grammar: GrammarState | None = None,
) -> list[Hypothesis]:
    """At most `beam_width` hypotheses, the best first; with a grammar, none that leaves its language."""
    search = Search(config, is_eos, [grammar] if grammar else [])
    live = [Hypothesis(tuple(prompt), len(prompt))]
    if config.max_new_tokens:
        logits = forward.begin(prompt)
    for left in range(config.max_new_tokens - 1, -1, -1):
        live, choices = search.advance(live, logits)
        if not left or search.settled(live):
            break
        logits = forward.extend(choices)
    return search.best([] if search.settled(live) else live)


@dataclass(slots=True)
class Search:
    """State of a search, and its rules."""

    config: BeamSearchConfig
    is_eos: Callable[[int], bool]
    states: list[GrammarState] = field(default_factory=list)  # grammar states of the live beams, if any
    finished: list[Hypothesis] = field(default_factory=list)

    def advance(self, live: list[Hypothesis], logits: Floats) -> tuple[list[Hypothesis], list[tuple[int, int]]]:
        """The next live hypotheses, and how each follows from the old ones."""
        width = self.config.beam_width
        sums = log_softmax(logits) + np.array([beam.logprob_sum for beam in live])[:, None]
        for row, before in zip(sums, self.states, strict=False):
            row[~before.allowed(len(row))] = -np.inf
        following = list[Hypothesis]()
        choices = list[tuple[int, int]]()
        states = list[GrammarState]()
        # Twice the width: even if every beam ends with its best token, enough are left to go on.
        for rank, (beam, token, total) in enumerate(best_choices(sums, 2 * width)):
            state = self._state_after(beam, token)
            ends = self.is_eos(token) or (state is not None and state.finished)
            if ends and rank < width:
                self.finished.append(live[beam].then(token, total, finished=True))
            elif not ends and len(following) < width:
                following.append(live[beam].then(token, total, finished=False))
                choices.append((beam, token))
                states += [state] if state else []
        self.states = states
        self.finished = self.best([])
        return following, choices

    def _state_after(self, beam: int, token: int) -> GrammarState | None:
        if not self.states:
            return None
        state = self.states[beam].fork()
        state.advance(token)
        return state

    def settled(self, live: list[Hypothesis]) -> bool:
        """Whether going on cannot change the result, or must not."""
        if not live:
            return True
        if len(self.finished) < self.config.beam_width:
            return False
        return self.config.early_stopping or self._attainable(live[0]) <= self._score(self.finished[-1])

    def best(self, live: list[Hypothesis]) -> list[Hypothesis]:
        """The best of what has ended and of `live`."""
        return sorted([*self.finished, *live], key=self._score, reverse=True)[: self.config.beam_width]

    def _score(self, hypothesis: Hypothesis) -> float:
        return hypothesis.score(self.config.length_penalty)

    def _attainable(self, beam: Hypothesis) -> float:
        """The best score a live beam can reach: its sum cannot grow, but its length may make less of it."""
        n = self.config.max_new_tokens if self.config.length_penalty > 0 else beam.n_generated
        return scaled(beam.logprob_sum, n, self.config.length_penalty)


def scaled(logprob_sum: float, n_generated: int, length_penalty: float) -> float:
    return logprob_sum / math.pow(n_generated, length_penalty)


def best_choices(sums: NDArray[np.float64], n: int) -> list[tuple[int, int, float]]:
    """The n best of [n_beams, n_vocab] as (beam, token, sum), best first, equal ones by beam and token."""
    flat = sums.reshape(-1)
    n = min(n, len(flat))
    least = np.partition(flat, len(flat) - n)[len(flat) - n]
    at = np.flatnonzero(flat >= least)
    at = at[np.argsort(-flat[at], kind="stable")][:n]
    return [(int(i) // sums.shape[1], int(i) % sums.shape[1], float(flat[i])) for i in at if flat[i] > -np.inf]


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


class EngineBeams:
    """Beams as sequences of an engine: the prompt's pages are shared, and one step serves all beams."""

    def __init__(self, engine: Engine):
        self._feeder = Feeder(engine)
        self.beams: list[Beam] = []

    def begin(self, tokens: ListOf[int]) -> Floats:
        """See `BeamForward`."""
        last = LastRow()
        self.beams = [Beam(self._feeder.open(tokens, last), last)]
        return self._run()

    def extend(self, choices: ListOf[tuple[int, int]]) -> Floats:
        """See `BeamForward`."""
        following = [self._fork(beam) for beam, _ in choices]
        self.close()
        self.beams = following
        for beam, (_, token) in zip(following, choices, strict=True):
            self._feeder.feed(beam.sequence, [token])
        return self._run()

    def close(self) -> None:
        """Release what the beams hold."""
        for beam in self.beams:
            self._feeder.close(beam.sequence)

    def _fork(self, number: int) -> "Beam":
        last = LastRow()
        return Beam(self._feeder.fork(self.beams[number].sequence, last), last)

    def _run(self) -> Floats:
        self._feeder.run(*(beam.sequence for beam in self.beams))
        return np.stack([beam.last.row for beam in self.beams])


class Beam(NamedTuple):
    """A sequence and the logits after it."""

    sequence: Sequence
    last: LastRow
