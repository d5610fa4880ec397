"""The interactive chat: read a message or a command, act on it, again."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol

from tahr.cli.chat.commands import Leave, obey
from tahr.cli.chat.conversation import Conversation
from tahr.cli.chat.prompt import as_text
from tahr.cli.terminal.console import note
from tahr.errors import TahrError

# what stands before the first and before a further line of a message
FIRST = ">>> "
MORE = "... "
QUOTES = '"""'
GOODBYES = ("exit", "quit")
N_HISTORY_LINES = 1000


class Input(Protocol):
    """Where lines come from."""

    def ask(self, prompt: str) -> str: ...
    def ask_first(self, prompt: str) -> str: ...
    def has_more(self) -> bool: ...
    def silent(self) -> AbstractContextManager[None]: ...


class Script:
    """Lines of a program: each is a message, and none comes before it is wanted."""

    def __init__(self, ask: Callable[[str], str]):
        self.ask = ask
        self.ask_first = ask

    def has_more(self) -> bool:
        return False

    def silent(self) -> AbstractContextManager[None]:
        return nullcontext()


def repl(conversation: Conversation, source: Input) -> None:
    """Talk until the user leaves."""
    while True:
        try:
            text = read_message(source)
            with source.silent():
                turn(conversation, text)
        except KeyboardInterrupt:
            note("\n(Ctrl-D or /bye leaves)")
        except EOFError:
            conversation.output.leave("eof")
            return
        except Leave:
            conversation.output.leave("bye")
            return
        except TahrError as error:
            note(f"error: {error}")


def turn(conversation: Conversation, text: str) -> None:
    """Act on what was typed."""
    if not text.strip():
        return
    if text.strip() in GOODBYES:
        raise Leave
    if text.startswith("/") and "\n" not in text:  # a command is one line; what was pasted may begin with a slash
        obey(conversation, text.strip())
    else:
        conversation.reply(text)


def read_message(source: Input) -> str:
    """One line, or several: between triple quotes, joined by a backslash at the end, or pasted together."""
    line = source.ask_first(FIRST)
    if line.lstrip().startswith(QUOTES):
        return quoted(line.lstrip()[len(QUOTES) :], source.ask)
    lines = [line.rstrip("\n")]  # pasted text may end with a line break
    while lines[-1].endswith("\\") or (not line.startswith("/") and source.has_more()):
        following = further(source.ask)
        lines = [*lines[:-1], lines[-1].removesuffix("\\"), following or ""]
        if following is None:
            break
    return "\n".join(lines)


def quoted(line: str, ask: Callable[[str], str]) -> str:
    """Everything up to the closing quotes."""
    lines: list[str] = []
    following: str | None = line
    while following is not None and QUOTES not in following:
        lines.append(following)
        following = further(ask)
    last = (following or "").partition(QUOTES)[0]
    return "\n".join([*lines, last]).strip("\n")


def further(ask: Callable[[str], str]) -> str | None:
    """One more line of the message; None at the end of the input, which ends the message and not the chat."""
    try:
        return ask(MORE)
    except EOFError:
        return None


def ask_terminal(prompt: str) -> str:
    """A line from a person, with editing and history where Python has readline."""
    try:
        if sys.stdout.isatty():
            return input(prompt)
        sys.stderr.write(prompt)  # stdout goes to a file: it must hold replies alone
        sys.stderr.flush()
        return ask_pipe(prompt)
    except EOFError:
        sys.stderr.write("\n")  # Ctrl-D shows nothing: what comes next must not stand behind the prompt
        raise


def ask_pipe(prompt: str) -> str:
    """A line from a program, which needs no prompt."""
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return as_text(line, "standard input").rstrip("\r\n")


@contextmanager
def history(path: Path) -> Iterator[None]:
    """Lines typed before can be called back, also those of earlier days."""
    try:
        import readline
    except ImportError:  # some Pythons are built without it; typing still works
        yield
        return
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(N_HISTORY_LINES)
    try:
        yield
    finally:
        with suppress(OSError):  # a home that cannot be written to is no reason to fail at the end of a chat
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)
