"""Grammar workers: processes in which whatever a client's grammar makes us compute can be ended at any moment.

A grammar first gets a little time in the lane of quick ones, and what needs more goes to the lane of slow ones, so that
an ordinary grammar waits for no costly one.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from weakref import finalize

from tahr.errors import GenerateError, GrammarBusy, GrammarError

MEMORY_BYTES = 1 << 30
QUICK_CPU_S = 0.3
SLOW_CPU_S = 3.0
N_QUICK = 2  # workers of each lane
N_SLOW = 2
PATIENCE_S = 30.0  # limit on a grammar's time since it came, whatever else the machine does
BUSY = "Other grammars or other work kept this one from being compiled in time: try again in a moment."
CLOSED = "The model is closed: no grammar is compiled any more."
TOO_MUCH = f"The grammar needs more than {SLOW_CPU_S:g} s or {MEMORY_BYTES >> 20} MiB to compile: simplify it."
TOO_DEEP = "The grammar is too deep, or its parts refer to each other in too long a row: make it flatter."
MEANINGS = {  # beginnings of messages and their meaning
    "NoExtensionBias": "no text is in its language.",
    "panic": "it has too many parts.",
}
# Limits on a grammar, here and in the engine: see `llguidance.LLParserLimits`.
LIMITS = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}


class ComputedTooLong(Exception):
    """A grammar needs more time than its lane gives."""


class VocabularyFacts(NamedTuple):
    """A worker's part of a model's vocabulary."""

    special_ids: Mapping[str, int]  # ids by name
    n_vocab: int


class CompileJob:
    """Somebody waits for a grammar. When nobody does any more, or all time is over, it is ended, wherever it is."""

    def __init__(self, patience_s: float | None = None):
        self._lock = threading.Lock()
        self._on_end: Callable[[], None] | None = None
        self.ended = ""  # why
        self._timer = threading.Timer(PATIENCE_S if patience_s is None else patience_s, self.end, (BUSY,))
        self._timer.daemon = True
        self._timer.start()

    def end(self, why: str = BUSY) -> None:
        """Nothing more is computed for it."""
        with self._lock:
            self.ended = self.ended or why
            if self._on_end:
                self._on_end()

    def close(self) -> None:
        """End the job."""
        self._timer.cancel()

    def check(self) -> None:
        if self.ended:
            raise GrammarBusy(self.ended)

    @contextmanager
    def ended_by(self, on_end: Callable[[], None]) -> Iterator[None]:
        """While inside, an end also does this."""
        with self._lock:
            self.check()
            self._on_end = on_end
        try:
            yield
        finally:
            with self._lock:
                self._on_end = None


class Worker:
    """One such process. It serves one job at a time, and is started anew when a grammar has ended it."""

    def __init__(self, facts: VocabularyFacts, cpu_s: float) -> None:
        self._facts = facts
        self._cpu_s = cpu_s
        self._process: subprocess.Popen[str] | None = None
        self._end: Callable[[], object] = int  # nothing to end

    def text_of(self, kind: str, source: str, job: CompileJob) -> str:
        """A grammar as llguidance reads it; an error says what is wrong with it, or why that is not known."""
        line = json.dumps({"kind": kind, "source": source}) + "\n"
        while True:
            process = self._running()
            reply = ""
            try:
                with job.ended_by(process.kill):
                    reply = answer(process, line)
            finally:
                if not reply:  # an answer after an interrupt would be taken for the next one
                    self.close()
            if reply:
                return checked(json.loads(reply))
            job.check()
            if not was_idle(process.returncode):
                raise meaning_of(process.returncode)

    def close(self) -> None:
        """End the process, which also ends when nobody refers to this any more."""
        self._end()
        self._process = None

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None or self._process.poll() is not None:
            self.close()
            options = json.dumps(LIMITS | {"memory_bytes": MEMORY_BYTES, "cpu_s": self._cpu_s})
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tahr.grammar.worker", options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                env=environment(),
            )
            self._end = finalize(self, end, self._process, os.getpid())
            self._end.atexit = False  # the worker ends by itself without its parent
            with suppress(OSError):  # the first grammar will find a worker that is gone
                self._process.stdin.write(json.dumps(self._facts) + "\n")  # type: ignore[union-attr]
        return self._process


class Lane:
    """Some workers, each of which computes so long for a grammar; jobs take them in the order in which they came."""

    def __init__(self, facts: VocabularyFacts, n: int, cpu_s: float):
        self._idle = [Worker(facts, cpu_s) for _ in range(n)]
        self._waiting: deque[CompileJob] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def worker(self, job: CompileJob) -> Iterator[Worker]:
        """A worker for this job, as soon as it is its turn."""
        with job.ended_by(self._notify), self._changed:
            taken = self._taken(job)
        try:
            yield taken
        finally:
            with self._changed:
                self._idle.append(taken)
                self._changed.notify_all()

    def close(self) -> None:
        """End the workers, but for those that serve a job."""
        with self._changed:
            for each in self._idle:
                each.close()

    def _taken(self, job: CompileJob) -> Worker:
        self._waiting.append(job)
        try:
            self._changed.wait_for(lambda: job.ended or (self._idle and self._waiting[0] is job))
            job.check()
            return self._idle.pop()
        finally:
            self._waiting.remove(job)
            self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


def answer(process: "subprocess.Popen[str]", line: str) -> str:
    """The line that a worker answers; empty if it died."""
    assert process.stdin and process.stdout
    try:
        process.stdin.write(line)
        process.stdin.flush()
        return process.stdout.readline()
    except OSError:  # the worker is gone
        return ""


def checked(reply: Mapping[str, str]) -> str:
    """The text of a reply that has one."""
    if "fault" in reply:
        raise GenerateError(f"A grammar worker failed ({reply['fault']}). Please report this.")
    if "error" in reply:
        raise GrammarError(reply["error"])
    if "problem" in reply:
        raise GrammarError(f"The grammar does not compile: {first_sentence(reply['problem'])}")
    return reply["text"]


def was_idle(code: int) -> bool:
    """Whether a worker had ended by itself, just before it was given a grammar."""
    return code == 0 or (hasattr(signal, "SIGALRM") and code == -signal.SIGALRM)


def meaning_of(code: int) -> Exception:
    """The error for the exit code of a worker that died of a grammar."""
    if hasattr(signal, "SIGPROF") and code == -signal.SIGPROF:
        return ComputedTooLong()
    if code == -signal.SIGSEGV:  # llguidance recurses until its stack is full
        return GrammarError(TOO_DEEP)
    # The system kills where the machine's memory is full, which is not the grammar's doing alone.
    return GrammarBusy(BUSY) if code == -signal.SIGKILL else GrammarError(TOO_MUCH)


def end(process: "subprocess.Popen[str]", parent: int) -> None:
    if os.getpid() == parent:  # a forked process must not end what it has not begun
        process.kill()
        process.communicate()


def environment() -> dict[str, str]:
    """The process finds the packages where this one does, and has no threads: stacks and heaps of one per core would be
    counted as the grammar's memory."""
    package = find_spec("llguidance")
    assert package and package.origin, "looked for before"
    found = os.pathsep.join(str(path) for path in (Path(__file__).parents[2], Path(package.origin).parents[1]))
    return os.environ | {"PYTHONPATH": found, "RAYON_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


def first_sentence(message: str) -> str:
    """llguidance's message, on one line and ended by a full stop."""
    for begins, meaning in MEANINGS.items():
        if message.startswith(begins):
            return meaning
    lines = [line.strip() for line in message.splitlines() if line.strip() not in ("", "<non-verbose/>")]
    text = " ".join(lines)[:500].rstrip(".")
    return f"{text}."
