"""Ctrl-C during a reply."""

import signal
from types import FrameType


class Interrupt:
    """While entered, the first Ctrl-C only asks for a stop, so that no step is cut in half; the second one raises."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> "Interrupt":
        self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
