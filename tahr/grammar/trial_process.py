"""Runs `trial.py`: grammars are compiled in a process of their own first, within limits of time and memory."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from weakref import finalize

from tahr.errors import GrammarError

PROGRAM = Path(__file__).with_name("trial.py")
MEMORY_BYTES = 1 << 30
CPU_S = 3.0
WALL_S = 30.0  # on a machine with much else to do
AT_ONCE_S = 0.1  # an idle process may have ended by itself, just before it was given a grammar
MEANINGS = {  # of messages by their beginnings
    "NoExtensionBias": "no text is in its language.",
    "oneOf constraints are not supported": "two branches of a oneOf may both fit a value: use anyOf.",
}
# What a grammar may take, here and in the engine: see `llguidance.LLParserLimits`.
LIMITS = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}


class TrialProcess:
    """One such process. It serves one thread at a time, and is started anew when a grammar has ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._end: Callable[[], object] = int  # nothing to end

    def check(self, grammar: str) -> None:
        """Refuse a grammar that does not compile within the limits."""
        began = perf_counter()
        reply = self._ask(grammar)
        if reply is None and perf_counter() - began < AT_ONCE_S:
            reply = self._ask(grammar)
        if reply is None:
            raise GrammarError(
                f"The grammar needs more than {CPU_S:g} s or {MEMORY_BYTES >> 20} MiB to compile: simplify it."
            )
        if message := json.loads(reply):
            raise GrammarError(f"The grammar does not compile: {first_sentence(message)}")

    def close(self) -> None:
        """End the process, which also ends when nobody refers to this any more."""
        self._end()
        self._process = None

    def _ask(self, grammar: str) -> str | None:
        """The process's answer; None if it died or took too long."""
        process = self._running()
        assert process.stdin and process.stdout
        deadline = threading.Timer(WALL_S, process.kill)
        deadline.daemon = True
        deadline.start()
        try:
            process.stdin.write(json.dumps(grammar) + "\n")
            process.stdin.flush()
            reply = process.stdout.readline()
        except OSError:  # it is gone
            reply = ""
        finally:
            deadline.cancel()
        if not reply:
            self.close()
        return reply or None

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None or self._process.poll() is not None:
            self.close()
            options = json.dumps(LIMITS | {"memory_bytes": MEMORY_BYTES, "cpu_s": CPU_S})
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM), options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                env=environment(),
            )
            self._end = finalize(self, end, self._process, os.getpid())
            self._end.atexit = False  # without its parent it ends by itself
        return self._process


def end(process: "subprocess.Popen[str]", parent: int) -> None:
    if os.getpid() == parent:  # a forked process must not end what it has not begun
        process.kill()
        process.communicate()


def environment() -> dict[str, str]:
    """The process finds llguidance where this one does, and has no threads: stacks and heaps of one per core would be
    counted as the grammar's memory."""
    package = find_spec("llguidance")
    assert package and package.origin, "asked for before"
    found = str(Path(package.origin).parents[1])
    return os.environ | {"PYTHONPATH": found, "RAYON_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


def first_sentence(message: str) -> str:
    """What llguidance says, on one line and ended by a full stop."""
    for begins, meaning in MEANINGS.items():
        if message.startswith(begins):
            return meaning
    lines = [line.strip() for line in message.splitlines() if line.strip() not in ("", "<non-verbose/>")]
    text = " ".join(lines)[:500].rstrip(".")
    return f"{text}."
