"""Work on long texts ends between two parts of them when nobody waits for it any more.

A thread in the middle of a text cannot be interrupted, so whoever hands it work keeps a `Cancellation` and the work
itself looks at it: every loop over the parts of a text calls `check_cancelled`.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from tahr.errors import TahrError

T = TypeVar("T")

_this_thread = threading.local()


class TextCancelled(TahrError):
    """Nobody waits for what becomes of a text any more."""


class Cancellation:
    """Work that any thread may cancel while another does it."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        """Let the work end at its next check."""
        self.is_cancelled = True

    def run(self, work: Callable[[], T]) -> T:
        """Do the work on this thread, unless it has been cancelled or is."""
        _this_thread.current = self
        try:
            check_cancelled()
            return work()
        finally:
            _this_thread.current = None


def check_cancelled() -> None:
    """End the work of this thread if it has been cancelled."""
    current: Cancellation | None = getattr(_this_thread, "current", None)
    if current is not None and current.is_cancelled:
        raise TextCancelled("The client has left, so its text is not worked on any more.")
