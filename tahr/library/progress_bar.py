"""A progress bar for batches, on a terminal only."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

WIDTH = 30  # characters
EVERY_S = 0.1


class Bar:
    """`[=====>    ] 12/40 replies, 310 tokens/s`, redrawn a few times a second and wiped at the end."""

    def __init__(self, total: int, wanted: bool = True, out: TextIO | None = None):
        self._total = total
        self._out = out or sys.stderr
        self._shown = wanted and total > 1 and is_terminal(self._out)
        self._began = time.perf_counter()
        self._drawn = 0.0

    def update(self, count: Callable[[], tuple[int, int]]) -> None:
        """Redraw it if it is time. `count` says how many replies are done, and how many tokens generated in all."""
        now = time.perf_counter()
        if not self._shown or now - self._drawn < EVERY_S:
            return
        self._drawn = now
        (n_done, n_tokens) = count()
        filled = WIDTH * n_done // self._total
        bar = ("=" * filled + ">")[:WIDTH].ljust(WIDTH)
        speed = n_tokens / max(now - self._began, 1e-9)
        self._write(f"\r[{bar}] {n_done}/{self._total} replies, {speed:.0f} tokens/s\x1b[K")

    def close(self) -> None:
        """Leave no trace."""
        if self._shown and self._drawn:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):  # the terminal is gone: that is no reason to lose the replies
            self._shown = False


def is_terminal(out: TextIO | None) -> bool:
    """Services and programs with windows have no stderr at all, or a closed one."""
    try:
        return out is not None and out.isatty()
    except ValueError:
        return False
