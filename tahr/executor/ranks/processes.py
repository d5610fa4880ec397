"""The processes of ranks: begun by one thread that lasts as long as they do, watched by it, and ended together."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from tahr.executor.ranks.region import Region

PROGRAM = "tahr.executor.ranks.program"


class RankProcesses:
    """A group of processes. When one ends, all are given up, and who waits for them is told."""

    def __init__(self, region: Region, arguments: Sequence[Sequence[str]]):
        self.reason = ""  # why the group was given up
        self.pids: tuple[int, ...] = ()
        self._region = region
        self._arguments = arguments
        self._processes: list[subprocess.Popen[bytes]] = []
        self._alive, self._kept = os.pipe()  # ranks end when nobody holds the second end any more
        self._told, self._tell = os.pipe()  # end of the watch
        self._began = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="tahr-ranks", daemon=True)
        self._parent = os.getpid()

    def begin(self) -> None:
        """Begin all of them, on the thread that is going to watch them: the system ends them with it."""
        self._thread.start()
        self._began.wait()
        if self._error:
            self.end()
            raise self._error

    def end(self) -> None:
        """Kill what is left of them, stopped or not, and wait for it."""
        if os.getpid() != self._parent or self._tell < 0:
            return  # a forked process must not end what it has not begun
        self._region.words.abandon()
        os.write(self._tell, b".")
        self._thread.join()
        for descriptor in (self._alive, self._kept, self._told, self._tell):
            os.close(descriptor)
        self._tell = -1

    def _run(self) -> None:
        try:
            for arguments in self._arguments:
                self._processes.append(self._spawn(arguments))
            self.pids = tuple(process.pid for process in self._processes)
        except OSError as error:
            self._error = error
        self._began.set()
        try:
            self._watch()
        finally:
            for process in self._processes:
                process.kill()
            for process in self._processes:
                process.wait()

    def _spawn(self, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
        """They find the packages where this process does."""
        paths = os.pathsep.join(path for path in sys.path if path)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", PROGRAM, *arguments, str(self._parent), str(self._alive)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(self._region.descriptor, self._alive),
            env=os.environ | {"PYTHONPATH": paths},
        )

    def _watch(self) -> None:
        """Until a process ends, or all are to."""
        ends = {os.pidfd_open(process.pid): rank for rank, process in enumerate(self._processes)}
        poll = select.poll()
        for descriptor in (self._told, *ends):
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll()]
        if self._told not in ready:
            rank = ends[ready[0]]
            self.reason = f"rank {rank} ended ({meaning_of(self._processes[rank].wait())})"
        for descriptor in ends:
            os.close(descriptor)
        self._region.words.abandon()


def meaning_of(code: int) -> str:
    """An exit code in a word."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
