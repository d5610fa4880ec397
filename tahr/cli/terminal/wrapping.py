"""Lines that end between words, for a text that comes in pieces to a terminal.

A word is shown as it comes; one that reaches the edge is taken back and begins the next line. Blocks of code stay as
they are: their lines must be copied whole.
"""

import os
import unicodedata
from collections.abc import Callable

FENCES = ("```", "~~~")
N_FENCE = 8  # characters from the beginning of a line that may show a fence
TAKE_BACK = "\x1b[{}D\x1b[K"
WIDE = ("W", "F")
MIN_COLUMNS = 10
TAB = 8


def columns_of(fd: int) -> int:
    """How many columns a terminal has; 0 if it does not say."""
    try:
        return os.get_terminal_size(fd).columns
    except OSError:
        return 0


def cells(char: str) -> int:
    """How many columns a character takes."""
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in WIDE else 1


class Wrapping:
    """Where the cursor is in a line, and the word it stands behind."""

    def __init__(self, columns: Callable[[], int]):
        self._columns = columns
        self.begin_message()

    def begin_message(self) -> None:
        self._in_code = False
        self.begin_line()

    def begin_line(self) -> None:
        self._column = 0
        self._begin = ""
        self._begin_word()

    def _begin_word(self) -> None:
        self._word: list[str] = []
        self._n_word = 0

    def __call__(self, text: str) -> str:
        """Output for one more piece."""
        width = self._columns() - 1  # terminals differ at the last column
        return "".join(self._char(char, width) for char in text)

    def _char(self, char: str, width: int) -> str:
        if char == "\n":
            self._in_code ^= self._is_fence
            self.begin_line()
            return char
        if len(self._begin) < N_FENCE:
            self._begin += char
        if self._in_code or self._is_fence or width < MIN_COLUMNS:
            return char
        return self._space(char, width) if char in " \t" else self._letter(char, width)

    @property
    def _is_fence(self) -> bool:
        return self._begin.lstrip(" ").startswith(FENCES)

    def _space(self, char: str, width: int) -> str:
        self._begin_word()
        n = TAB - self._column % TAB if char == "\t" else 1
        if self._column + n > width:  # the line ends here; the space is the line break
            self._column = 0
            return "\n"
        self._column += n
        return char

    def _letter(self, char: str, width: int) -> str:
        n = cells(char)
        if n == 2:  # scripts without spaces may break anywhere
            self._begin_word()
        before = self._column - self._n_word
        shown = ""
        if self._column + n > width:
            shown = self._next_line(before)
        self._word.append(char)
        self._n_word += n
        self._column += n
        return shown + char

    def _next_line(self, before: int) -> str:
        """Begin a line, with the word unless it fills the whole line already."""
        if before == 0:
            self._begin_word()
            self._column = 0
            return "\n"
        taken_back = TAKE_BACK.format(self._n_word) if self._n_word else ""
        self._column = self._n_word
        return f"{taken_back}\n{''.join(self._word)}"
