"""Python's garbage collector: it runs rarely beside an engine, and not at all where it would do harm or nothing."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

# Between two collections. A step of 256 sequences makes hundreds of objects and drops them, a request some more, next
# to none in cycles: with Python's 700 the collector would find nothing in nearly every step.
N_NEW_OBJECTS = 10_000


class Collector:
    """The collector of the process, which runs rarely while any engine is at work, and at times not at all."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._n_holders = 0
        self._before = gc.get_threshold()
        self._n_off = 0  # users that need the collector off
        self._was_on = True  # state before the first of them

    @contextmanager
    def rare(self) -> Iterator[None]:
        """The program's own threshold comes back when the last holder leaves; one that collects less is kept."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            self._n_holders += 1
            if self._n_holders == 1:
                self._before = gc.get_threshold()
                if 0 < self._before[0] < N_NEW_OBJECTS:
                    gc.set_threshold(N_NEW_OBJECTS, *self._before[1:])

    def _leave(self) -> None:
        with self._lock:
            self._n_holders -= 1
            if not self._n_holders:
                gc.set_threshold(*self._before)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Nothing is collected until the last holder leaves."""
        with self._lock:
            self._n_off += 1
            if self._n_off == 1:
                self._was_on = gc.isenabled()
                gc.disable()
        try:
            yield
        finally:
            with self._lock:
                self._n_off -= 1
                if not self._n_off and self._was_on:
                    gc.enable()


COLLECTOR = Collector()
rare_collections = COLLECTOR.rare
no_collections = COLLECTOR.off
