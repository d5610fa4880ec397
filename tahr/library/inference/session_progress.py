"""Watching a reply from outside while it is made: stop it, or hear how far it is."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tahr.engine.sequences.stats import rate


class CancellationToken:
    """Cancel from any thread; whoever makes the reply looks before each token."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        """Stop the reply before its next token."""
        self._event.set()

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()


@dataclass(frozen=True, slots=True)
class GenerationProgress:
    """How far a reply is. `total` is the most tokens it can have; `final` is set on the last report."""

    tokens_generated: int
    total: int
    elapsed_s: float
    tokens_per_s: float
    eta_s: float
    final: bool


class ProgressReporter:
    """Calls back at most once per `every_s` seconds, and once at the end."""

    def __init__(
        self,
        callback: Callable[[GenerationProgress], None],
        total: int,
        every_s: float = 0.1,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._callback = callback
        self._total = total
        self._every_s = every_s
        self._clock = clock
        self._began = self._reported = clock()

    def report(self, n_tokens: int, final: bool = False) -> None:
        """Report that `n_tokens` have been generated."""
        now = self._clock()
        if not final and now - self._reported < self._every_s:
            return
        self._reported = now
        elapsed = now - self._began
        speed = rate(n_tokens, elapsed)
        eta = 0.0 if final or not speed else (self._total - n_tokens) / speed
        self._callback(GenerationProgress(n_tokens, self._total, elapsed, speed, eta, final))
