"""How much sound is written down or made, on a terminal while it is, and in a line at the end."""

import time
from typing import TextIO

from tahr.library.progress_bar import is_terminal
from tahr.speech.formats import clock


class SoundProgress:
    """`00:12:30 written down, 14 times as fast as it is heard`, redrawn at each segment."""

    def __init__(self, out: TextIO, done: str = "written down", shown: bool = True):
        self._out = out
        self._done = done
        self._shown = shown and is_terminal(out)
        self._began = time.perf_counter()

    def show(self, seconds: float) -> None:
        if self._shown:
            self._out.write(f"\r{clock(seconds, '.')[:-4]} {self._done}, {self._speed(seconds)}\x1b[K")
            self._out.flush()

    def wipe(self) -> None:
        """Leave no trace."""
        if self._shown:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def summary(self, seconds: float) -> str:
        took = time.perf_counter() - self._began
        return f"[{seconds:.1f} s of sound in {took:.1f} s, {self._speed(seconds)}]"

    def _speed(self, seconds: float) -> str:
        return f"{seconds / max(time.perf_counter() - self._began, 1e-9):.1f} times as fast as it is heard"
