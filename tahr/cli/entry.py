"""Where the process of the command `tahr` begins and ends: quietly, whenever Ctrl-C comes, and soon."""

import atexit
import os
import signal
import sys
from contextlib import suppress

EXIT_INTERRUPTED = 128 + 2  # SIGINT


class Process:
    """The process of one command."""

    def __init__(self) -> None:
        self.code = EXIT_INTERRUPTED
        self._raises = signal.getsignal(signal.SIGINT)
        self._is_ours = self._raises is signal.default_int_handler  # a shell may have Ctrl-C ignored

    def run(self) -> None:
        """Do what the command line says."""
        atexit.register(self._end)  # the first of all, so the last to be called
        self._be_quiet()  # nobody says yet in words that Ctrl-C came
        from tahr.cli.main import main

        if self._is_ours:
            signal.signal(signal.SIGINT, self._raises)
        with suppress(KeyboardInterrupt):  # a second one, while the first is reported
            self.code = main()
        self._be_quiet()

    def _be_quiet(self) -> None:
        if self._is_ours:
            signal.signal(signal.SIGINT, lambda *_: os._exit(self.code))

    def _end(self) -> None:
        # The interpreter would free every object by itself, in half a second for a server; the system does it at once.
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(self.code)


def main() -> None:
    """The command `tahr`."""
    Process().run()
