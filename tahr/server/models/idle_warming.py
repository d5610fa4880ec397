"""Prepares an engine's steps while it has nothing to do, so that requests do not wait for compilations and captures."""

import logging
import time
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from tahr.engine.engine import Engine

QUIET_S = 0.5  # idle time before anything is prepared: a client that sends request after request never waits

log = logging.getLogger("tahr.server")


class WarmingEngines:
    """The engines of a process that warm while they are idle: they share its devices."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._engines: WeakSet[Engine] = WeakSet()

    def add(self, engine: "Engine") -> None:
        with self._lock:
            self._engines.add(engine)

    @property
    def busy(self) -> bool:
        """Whether one of them has work, which must not share the device with what nobody waits for."""
        with self._lock:
            return any(engine.busy for engine in self._engines)


ENGINES = WarmingEngines()


class IdleWarming:
    """Prepares one kind of step after the other, as long as there is nothing else to do, until all are prepared.

    It ends for good when there is no memory left for more, or when something fails: requests then prepare what they
    need themselves, as they do without it.
    """

    def __init__(self, engine: "Engine", name: str):
        self._engine = engine
        self._name = name
        self._seconds = 0.0
        self.finished = False
        ENGINES.add(engine)

    def run(self, wait: Callable[[float], bool]) -> bool:
        """Return when there is work, or False when nothing is left to prepare: see `AsyncLLM.when_idle`."""
        seconds = QUIET_S
        while not wait(seconds):
            if ENGINES.busy:
                seconds = QUIET_S
            elif not self._warm_next():
                self.finished = True
                return False
            else:
                seconds = 0.0
        return True

    def _warm_next(self) -> bool:
        """Prepare one, or wait a moment for its kernels; whether there may be more."""
        began = time.perf_counter()
        try:
            more = warm_next(self._engine)
        except Exception:
            log.warning("Preparing steps of %s ahead failed; requests go on without.", self._name, exc_info=True)
            return False
        if more:
            self._seconds += time.perf_counter() - began
        elif self._seconds:
            log.info("warmed model=%s seconds=%.2f", self._name, self._seconds)
        return more


def warm_next(engine: "Engine") -> bool:
    """Go on with the steps of an engine that has nothing in flight, for a moment; False if none is left to prepare."""
    speculator = engine.speculator
    drafts = speculator.proposer.warm_next if speculator else lambda: False
    return engine.steps.warm_next() or drafts() or engine.adapters.warm_next()
