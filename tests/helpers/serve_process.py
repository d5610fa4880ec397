"""`tahr serve` as a process of its own."""

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from python_here import python_here


class ServeProcess:
    """A server as a user starts it."""

    def __init__(self, *options: str):
        port = () if "--addr" in options else ("--port", "0")
        threads = () if "--backend" in options else ("-t", "2")
        command = python_here("-m", "tahr", "serve", *port, *threads, *options)
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        env.pop("TAHR_API_KEY", None)
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("Ready on"):
                self._ready.set()
        self._ready.set()

    @property
    def address(self) -> str:
        assert self._ready.wait(60)
        found = [m for line in self.lines if (m := re.match(r"Ready on (\S+)", line))]
        assert found, self.lines
        return found[0][1]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 15) -> int:
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code


@contextmanager
def served(*options: str) -> Iterator[ServeProcess]:
    made = ServeProcess(*options)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
