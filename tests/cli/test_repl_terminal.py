"""The chat as a real program in a real terminal: Ctrl-C, pasted lines, keys typed during a reply, line breaks."""

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest

import assets
import test_wrapping

ROOT = Path(__file__).parent.parent
STORIES = assets.stories()


class Terminal:
    """`tahr` with a terminal of its own; `until` reads what it shows."""

    def __init__(self, *args: str, home: Path, kind: str = "dumb", columns: int = 0):
        self.shown = ""
        self._seen = 0
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TAHR_HOME": str(home), "TERM": kind, "HF_HUB_OFFLINE": "1"}
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            if columns:
                fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.execve(sys.executable, [sys.executable, "-m", "tahr", *args], env)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, text: str, within_s: float = 60) -> None:
        """Read on until `text` is shown after what was seen before."""
        deadline = time.monotonic() + within_s
        while (at := self.shown.find(text, self._seen)) < 0:
            assert select.select([self._fd], [], [], deadline - time.monotonic())[0], f"no {text!r} in {self.shown!r}"
            self.shown += self._read()
        self._seen = at + len(text)

    def press_until(self, key: str, text: str) -> None:
        """Press a key, and again as people do: readline keeps a Ctrl-C that comes just before it waits for keys."""
        for _ in range(5):
            self.type(key)
            with suppress(AssertionError):
                self.until(text, within_s=5)
                break
        else:
            self.until(text)

    def _read(self) -> str:
        try:
            return os.read(self._fd, 65536).decode(errors="replace")
        except OSError:
            raise AssertionError(f"the program has gone: {self.shown!r}") from None

    def exit_code(self) -> int:
        while True:
            try:
                data = os.read(self._fd, 65536)
                if not data:
                    break
                self.shown += data.decode(errors="replace")
            except OSError:  # the other end is closed
                break
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    # The reference backend is slow, and here that is welcome: a reply lasts long enough to be interrupted.
    options = ("--raw", "--backend", "reference", "--ignore-eos", "-n", "400", "--temperature", "0")
    return Terminal("run", str(STORIES), *options, home=tmp_path)


def test_ctrl_c_in_a_terminal_stops_the_reply_and_not_the_program(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until(">>> ")
    terminal.type("Once upon a time\r")
    terminal.until("there was")
    terminal.type("\x03")
    terminal.until("[stopped after")
    terminal.until(">>> ")
    terminal.type("/set max_tokens 5\r")
    terminal.until("max_tokens 5")
    terminal.until(">>> ")
    terminal.type("Once upon a time\r")
    terminal.until("tok/s")
    terminal.until(">>> ")
    terminal.press_until("\x03", "/bye leaves")
    terminal.until(">>> ")
    terminal.type("\x04")
    terminal.until("\n")  # the shell's prompt has a line of its own
    assert terminal.exit_code() == 0
    assert "Once upon a time" in (tmp_path / "history").read_text()


# Chats on the fast backend, with replies of three tokens: each shows one summary.
SHORT = ("run", str(STORIES), "--raw", "--ignore-eos", "-n", "3", "--temperature", "0")
PASTES = {
    "marked by the terminal": ("xterm", "\x1b[200~Once upon\na time\nthere was\x1b[201~\r"),
    "not marked": ("dumb", "Once upon\ra time\rthere was\r"),
}


@pytest.mark.parametrize("paste", PASTES)
def test_several_pasted_lines_are_one_message(paste: str, tmp_path: Path) -> None:
    kind, keys = PASTES[paste]
    terminal = Terminal(*SHORT, home=tmp_path, kind=kind)
    terminal.until(">>> ")
    terminal.type(keys)
    terminal.until("first token after")
    terminal.until(">>> ")
    terminal.type("exit\r")
    assert terminal.exit_code() == 0
    assert terminal.shown.count("first token after") == 1


def test_what_is_typed_during_a_reply_waits_for_the_next_prompt(tmp_path: Path) -> None:
    options = ("--raw", "--backend", "reference", "--ignore-eos", "-n", "400", "--temperature", "0")
    terminal = Terminal("run", str(STORIES), *options, home=tmp_path, kind="xterm")
    terminal.until(">>> ")
    terminal.type("Once upon a time\r")
    terminal.until("there was")
    reply_at = len(terminal.shown)
    terminal.type("/set max_tok")
    time.sleep(0.3)  # keys come while the reply goes on
    terminal.type("\x03")
    terminal.until("[stopped after")
    reply, prompt, _ = terminal.shown[reply_at:].partition("[stopped after")
    assert prompt and "/set" not in reply, "keys are not shown in the middle of a reply"
    terminal.until("/set max_tok")
    terminal.type("ens 5\r")
    terminal.until("max_tokens 5,", within_s=10)
    terminal.until(">>> ")
    terminal.type("exit\r")
    assert terminal.exit_code() == 0
    assert terminal.shown.rindex("\x1b[?2004l") > terminal.shown.rindex("\x1b[?2004h"), "the terminal is as it was"


def test_lines_end_between_words_in_a_narrow_terminal(tmp_path: Path) -> None:
    terminal = Terminal(*SHORT, "-n", "80", home=tmp_path, kind="xterm", columns=30)
    terminal.until(">>> ")
    terminal.type("Once upon a time\r")
    begin = len(terminal.shown)
    terminal.until("first token")
    reply = terminal.shown[begin:].split("[prompt", 1)[0].rpartition("\x1b[?2004h")[2]
    lines = test_wrapping.shown(
        reply.partition("\x1b[?2004l")[0].replace("\r", ""), width=30
    )  # which checks their widths
    assert len(lines) > 3 and "\x1b[K" in reply, "words were taken back to the next line"
    terminal.until(">>> ")
    terminal.type("exit\r")
    assert terminal.exit_code() == 0


def test_leaving_with_a_word(terminal: Terminal) -> None:
    terminal.until(">>> ")
    terminal.type("exit\r")
    assert terminal.exit_code() == 0
