"""Copies of pages that end as late as they may, beside a device that is always behind.

What is stored is read when the device comes to it. What is loaded is nonsense until its ticket is done, which it is not
before it has been asked some times, or is collected.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tahr.backends.api import EndedCopy, HostPage, KVStore, PageIOAtOnce, Ticket

N_ASKED = 3  # times, before a copy ends by itself


class LateCopy:
    """The ticket of a copy that `run` makes."""

    def __init__(self, contents: Sequence[HostPage], run: Callable[[], None]):
        self._contents = contents
        self._run = run
        self._n_asked = 0

    def done(self) -> bool:
        self._n_asked += 1
        if self._n_asked == N_ASKED:
            self._run()
        return self._n_asked >= N_ASKED

    def collect(self) -> Sequence[HostPage]:
        while not self.done():
            pass
        return self._contents


class LatePageIO(PageIOAtOnce):
    """`PageIO` of a late backend, over what it wraps."""

    def __init__(self, late: Any, kv: KVStore):
        super().__init__(late._inner, kv)
        self._late = late

    def store(self, pages: Sequence[int], group: int = 0) -> Ticket:
        self._checked(pages, group)
        contents = self.blank(len(pages), group)
        numbers = list(pages)
        read: list[bool] = []

        def run() -> None:
            if numbers:
                self.read(numbers, group, [page.data for page in contents])
            read.append(True)

        def finish() -> None:
            while not read:
                self._late.run_next()

        self._late.enqueue(run)
        return LateCopy(contents, finish)

    def load(self, pages: Sequence[int], group: int, contents: Sequence[HostPage]) -> Ticket:
        numbers = list(pages)
        if not numbers:
            return EndedCopy(contents)
        nonsense = self.blank(len(numbers), group)
        for page in nonsense:
            page.data[:] = np.uint8(0xFF)
        spoilt: list[bool] = []

        def spoil() -> None:
            self.write(numbers, group, [page.data for page in nonsense])
            spoilt.append(True)

        def finish() -> None:
            while not spoilt:  # steps before the call may still read what the pages held
                self._late.run_next()
            self.write(numbers, group, [page.data for page in contents])

        self._checked(numbers, group)
        self._late.enqueue(spoil)
        return LateCopy(contents, finish)
