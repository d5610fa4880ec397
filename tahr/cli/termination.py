"""SIGTERM and SIGHUP end a command as Ctrl-C does: what it has half written is removed on its way out."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """A signal has ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def raised_signals() -> Iterator[None]:
    """Raise `Terminated` in the main thread; signals that somebody handles or ignores (`nohup`) stay theirs."""
    is_main = threading.current_thread() is threading.main_thread()
    ours = [number for number in SIGNALS if is_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    raise Terminated(number)
