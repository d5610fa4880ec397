"""A `tahr serve` in a process of its own, and what the system says about it."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

WARM = "tahr_models_warming 0"
READY = re.compile(r"^Ready on (\S+) ")


class Server(NamedTuple):
    """Where it listens, and its process."""

    address: str
    pid: int


@contextmanager
def serving(*options: str) -> Iterator[Server]:
    """A server on a free port, without a line per request; ended on the way out."""
    command = [
        sys.executable,
        "-m",
        "tahr",
        "serve",
        *options,
        "--port",
        "0",
        "--no-request-log",
        "--log-interval",
        "0",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Server(ready_address(process), process.pid)
        finally:
            process.terminate()


def ready_address(process: "subprocess.Popen[str]") -> str:
    assert process.stderr
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := READY.match(line):
            return found[1]
    sys.exit("The server did not start:\n" + "".join(lines))


def wait_until_warm(address: str, most_s: float = 180.0) -> float:
    """Seconds until a server has prepared all sizes of steps, as it does while it is idle."""
    began = time.perf_counter()
    while (seconds := time.perf_counter() - began) < most_s:
        with urllib.request.urlopen(f"{address}/metrics", timeout=10) as reply:
            if WARM in reply.read().decode().splitlines():
                return seconds
        time.sleep(0.2)
    sys.exit(f"The server still prepares steps after {most_s:.0f} s.")


def read_metric(address: str, name: str) -> float:
    """A metric of the only model."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as reply:
        return next(float(line.split()[-1]) for line in reply.read().decode().splitlines() if line.startswith(name))


def cpu_s(pid: int) -> float:
    """Seconds a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Memory a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
