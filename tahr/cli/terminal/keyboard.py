"""A person at a terminal: pasted lines are one message, and what is typed during a reply waits for the next prompt."""

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

ECHO_FIELD = 3  # index of the local modes in termios attributes
# Lines that come this soon after another were pasted into a terminal that does not mark pastes: nobody types so fast.
PASTE_S = 0.03
MARK_PASTES = b"\x1b[?2004h"
LEAVE_PASTES = b"\x1b[?2004l"


class Keyboard:
    """Lines from a terminal; `ask` shows a prompt and reads one."""

    def __init__(self, ask: Callable[[str], str]):
        self._ask = ask
        self._was_typed_ahead = False
        self._marks_pastes = mark_pastes()

    def ask(self, prompt: str) -> str:
        return self._ask(prompt)

    def ask_first(self, prompt: str) -> str:
        """The first line of a message. Lines typed during the reply stay messages of their own."""
        self._was_typed_ahead = has_input(0.0)
        return self._ask(prompt)

    def has_more(self) -> bool:
        """Whether the next line was pasted together with the last one."""
        return not self._was_typed_ahead and has_input(PASTE_S)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """While a reply comes, keys are not shown, and Ctrl-C takes nothing away that was typed."""
        with without_echo():
            self._tell_terminal(MARK_PASTES)
            try:
                yield
            finally:
                self._tell_terminal(LEAVE_PASTES)

    def _tell_terminal(self, mode: bytes) -> None:
        if self._marks_pastes and sys.stdout.isatty():
            os.write(sys.stdout.fileno(), mode)


def mark_pastes() -> bool:
    """Let readline take a paste as one text; False where it cannot."""
    try:
        import readline
    except ImportError:
        return False
    if "libedit" in (readline.__doc__ or "") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    readline.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off for its own prompt
    return True


def has_input(within_s: float) -> bool:
    """Whether keys wait to be read."""
    try:
        return bool(select.select([sys.stdin.fileno()], [], [], within_s)[0])
    except (OSError, ValueError):  # closed, or a console that cannot be waited for
        return False


@contextmanager
def without_echo() -> Iterator[None]:
    """The terminal keeps keys as they are, for whoever reads next."""
    try:
        import termios
    except ImportError:  # not a Unix
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    during = termios.tcgetattr(fd)
    during[ECHO_FIELD] = (during[ECHO_FIELD] & ~(termios.ECHO | termios.ICANON)) | termios.NOFLSH
    termios.tcsetattr(fd, termios.TCSADRAIN, during)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
