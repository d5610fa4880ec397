"""One progress line on stderr for every source: redrawn on a terminal, an occasional plain line in a log."""

from __future__ import annotations

import os
import threading
import time
from typing import TextIO

REDRAW_S = 0.1
LOG_LINE_S = 5.0
SHORTEST_LABEL = 8  # characters that stay of it on a narrow terminal


def human_bytes(n_bytes: float) -> str:
    """`93.0 MB`: decimal units, as disks and download pages count."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} B" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.2f} TB"


class Progress:
    """Shows how far a download is; with no stream it shows nothing. Safe to advance from several threads."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._redraws = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._every_s = REDRAW_S if self._redraws else LOG_LINE_S
        self._lock = threading.Lock()
        self._drawn = False
        self.start("", None)

    def start(self, label: str, total_bytes: int | None, done_bytes: int = 0) -> None:
        """Begin a new bar; `done_bytes` were there before and do not count for the rate."""
        self._label = label
        self._total_bytes = total_bytes
        self._done_bytes = self._resumed_bytes = done_bytes
        self._began_s = self._last_drawn_s = time.monotonic()

    def advance(self, n_bytes: int) -> None:
        """Count bytes, and draw if it is time to."""
        with self._lock:
            self._done_bytes += n_bytes
            if time.monotonic() - self._last_drawn_s >= self._every_s:
                self._draw()

    def expect(self, total_bytes: int) -> None:
        """Correct the total of the running bar."""
        self._total_bytes = total_bytes

    def finish(self) -> None:
        """Draw the last state and leave it standing."""
        with self._lock:
            if self._done_bytes:
                self._draw()
            self._end_line()

    def note(self, text: str) -> None:
        """Say one sentence between bars."""
        with self._lock:
            self._end_line()
            if self._stream:
                print(text, file=self._stream, flush=True)

    def _end_line(self) -> None:
        if self._stream and self._drawn and self._redraws:
            self._stream.write("\n")
            self._stream.flush()
        self._drawn = False

    def _draw(self) -> None:
        self._last_drawn_s = time.monotonic()
        if not self._stream:
            return
        self._stream.write(f"\r{self._fitted(self._stream)}\x1b[K" if self._redraws else f"{self.line()}\n")
        self._stream.flush()
        self._drawn = True

    def _fitted(self, stream: TextIO) -> str:
        """The bar on one line of the terminal: of a wrapped one, every redraw would leave a piece standing."""
        line = self.line()
        try:
            width = os.get_terminal_size(stream.fileno()).columns - 1
        except (OSError, ValueError):  # no terminal after all, or one of a test
            return line
        over = len(line) - width
        if width <= 0 or over <= 0:  # a terminal that does not know its width says 0
            return line
        kept = max(len(self._label) - over - len("..."), SHORTEST_LABEL)
        short = f"{self._label[:kept]}..." if kept + len("...") < len(self._label) else self._label
        return (short + line[len(self._label) :])[:width]

    def line(self) -> str:
        """The bar as text: label, share, bytes, rate, time left."""
        rate = (self._done_bytes - self._resumed_bytes) / max(time.monotonic() - self._began_s, 1e-6)
        parts = [self._label, human_bytes(self._done_bytes), f"{human_bytes(rate)}/s"]
        if self._total_bytes:
            parts[1] += f" of {human_bytes(self._total_bytes)}"
            parts.insert(1, f"{min(100, 100 * self._done_bytes // self._total_bytes):3d}%")
            left_bytes = self._total_bytes - self._done_bytes
            if left_bytes > 0 and rate > 0:
                minutes, seconds = divmod(round(left_bytes / rate), 60)
                parts.append(f"{minutes}:{seconds:02d} left")
        return "  ".join(parts)
