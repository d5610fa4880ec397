"""Energy of an engine: what its device's counter counts, shared out among prefill, decode and idle time."""

import threading
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from tahr.backends.api import EnergyCounter
from tahr.engine.sequences.stats import EnergyUse, EngineStats

PERIOD_S = 0.1  # counters of cards move hardly more often
N_PERIODS = 10  # between two readings while there is work: one takes milliseconds, in which a card takes steps later
LEAST_S = 0.3  # time measured without which there is no figure


class CountedMoment(NamedTuple):
    """A counter and an engine's seconds at one moment."""

    joules: float
    at: float
    prefill_s: float
    decode_s: float


class EnergyMeter:
    """Reads a counter on a thread of its own while the engine works, and sleeps otherwise.

    The joules between two readings go to prefill and decode as the engine's seconds between them do; what remains of
    the time is idle. A step that has not landed at a reading is left to the next.
    """

    def __init__(self, counter: EnergyCounter, stats: EngineStats, is_busy: Callable[[], bool]):
        self._counter = counter
        self._stats = stats
        self._is_busy = is_busy
        self._use = EnergyUse(counter.name)
        self._has_work = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tahr-energy", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """A step begins."""
        if not self._has_work.is_set():
            self._has_work.set()

    def use(self) -> EnergyUse | None:
        """Joules so far; None while too little time was measured."""
        use = self._use
        return use if use.measured_s >= LEAST_S else None

    def close(self) -> None:
        """End the thread, which may be reading."""
        self._closing.set()
        self._has_work.set()

    def _run(self) -> None:
        works = True
        while works:
            self._has_work.wait()
            works = not self._closing.is_set() and self._measure()

    def _measure(self) -> bool:
        """Read until the engine has been idle for a period; whether the counter can be read."""
        self._has_work.clear()
        last = self._read()
        is_busy = True
        while last and is_busy and not self._closing.is_set():
            is_busy = self._stays_busy()
            now = self._read()
            last = now and (self._count(last, now) if self._has_landed(last, now) or not is_busy else last)
        return last is not None

    def _stays_busy(self) -> bool:
        """Wait until the next reading is due, with one period behind the work; whether there is still some."""
        for _ in range(N_PERIODS):
            is_busy = self._is_busy()
            if self._closing.wait(PERIOD_S) or not is_busy:
                return False
        return True

    def _read(self) -> CountedMoment | None:
        joules = self._counter.joules()
        stats = self._stats
        return None if joules is None else CountedMoment(joules, perf_counter(), stats.prefill_s, stats.decode_s)

    def _has_landed(self, last: CountedMoment, now: CountedMoment) -> bool:
        return now[2:] != last[2:]

    def _count(self, last: CountedMoment, now: CountedMoment) -> CountedMoment:
        joules, seconds, prefill_s, decode_s = (b - a for a, b in zip(last, now, strict=True))
        whole = max(seconds, prefill_s + decode_s)
        use = self._use
        self._use = replace(
            use,
            measured_s=use.measured_s + seconds,
            prefill_j=use.prefill_j + joules * prefill_s / whole,
            decode_j=use.decode_j + joules * decode_s / whole,
            idle_j=use.idle_j + joules * (whole - prefill_s - decode_s) / whole,
        )
        return now
