"""How small and how quick to start: venv size, `--version`, first token, peak memory.

usage: benchmarks/startup.py [MODEL]      (default: the default model; it is fetched first if need be)
"""

import os
import subprocess
import sys
import time
from pathlib import Path

TAHR = [sys.executable, "-m", "tahr"]
# Where bytecode files are forbidden every start compiles every module, which is not what users wait for.
ENVIRON = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
RUNS = 7


def timed(arguments: list[str]) -> list[float]:
    """Wall seconds of several runs, fastest first."""
    seconds = []
    for n in range(RUNS + 1):  # the first writes the bytecode, and does not count
        print(f"\r{' '.join(arguments)}: run {n} of {RUNS} ", end="", file=sys.stderr, flush=True)
        begin = time.perf_counter()
        subprocess.run(TAHR + arguments, check=True, capture_output=True, stdin=subprocess.DEVNULL, env=ENVIRON)
        seconds.append(time.perf_counter() - begin)
    print("\r\033[K", end="", file=sys.stderr)
    return sorted(seconds[1:])


def peak_bytes(arguments: list[str]) -> int:
    """Largest resident size of one run, in a child of its own so that other runs do not count."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, capture_output=True,"
        " stdin=subprocess.DEVNULL); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, *TAHR, *arguments], check=True, capture_output=True, text=True)
    return int(done.stdout) * (1 if sys.platform == "darwin" else 1024)


def folder_bytes(path: Path) -> int:
    return sum(f.lstat().st_blocks * 512 for f in path.rglob("*"))


def show(label: str, seconds: list[float], limit: float) -> None:
    median = seconds[len(seconds) // 2]
    print(f"{label:34s} median {median:6.3f} s   {seconds[0]:.3f} to {seconds[-1]:.3f}   limit {limit} s")


def main() -> None:
    """Print the table."""
    from tahr import hub

    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2:135m"
    weights = hub.resolve(model).weights
    print(f"{os.uname().machine}, {os.cpu_count()} cores, Python {sys.version.split()[0]}, {model}")
    print(f"{'virtual environment':34s} {folder_bytes(Path(sys.prefix)) / 1e6:6.0f} MB   (core alone: limit 200 MB)")
    show("tahr --version", timed(["--version"]), 0.3)
    show("tahr run -p Hi -n 1, warm cache", timed(["run", model, "-p", "Hi", "-n", "1"]), 1.5)
    n_bytes = sum(p.stat().st_size for p in weights)
    peak = peak_bytes(["run", model, "-p", "Tell me a story.", "-n", "64", "-c", "2048", "--temperature", "0"])
    print(f"{'peak memory, 64 tokens':34s} {peak / 1e6:6.0f} MB   weights {n_bytes / 1e6:.0f} MB + KV + 150 MB allowed")


if __name__ == "__main__":
    main()
