"""Checkouts of Tahr taking turns on one model, so that a slow minute slows all: what a change is worth.

usage: benchmarks/in_turn.py CHECKOUT CHECKOUT... --model MODEL.gguf [-p 0] [-n 64] [-np 1] [-d 0] [--turns 12]

Each checkout (a folder with `tahr/` and its built extension) has a process of its own; ratios are to the time of the
first. Run it by a Python where no Tahr is installed, since that one would run instead of the checkouts: it is refused.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median, quantiles

WORKER = """
import sys
from pathlib import Path
import tahr
if Path(tahr.__file__).resolve().parents[1] != Path.cwd().resolve():
    sys.exit(f"{tahr.__file__} would run instead of {Path.cwd()}: use a Python where no Tahr is installed.")
from tahr.config import EngineConfig
from tahr.tools.bench import Shape, open_bench
shape = Shape(*map(int, sys.argv[2:]))
bench = open_bench(sys.argv[1], EngineConfig(), [shape]).bench
for _ in sys.stdin:
    print(bench.time(shape), flush=True)
"""


class Checkout:
    """A process that runs the shape whenever it is asked."""

    def __init__(self, path: str, model: str, shape: list[int]):
        self.path = path
        command = [sys.executable, "-c", WORKER, str(Path(model).resolve()), *map(str, shape)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=path, env={**os.environ, "PYTHONPATH": "."}, **pipes)
        self.seconds: list[float] = []

    def run(self) -> float:
        print(file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"The process of {self.path} has ended; it said why above.")
        return float(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+")
    parser.add_argument("--model", required=True)
    parser.add_argument("-p", type=int, default=0)
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("-np", type=int, default=1)
    parser.add_argument("-d", type=int, default=0)
    parser.add_argument("--turns", type=int, default=12)
    args = parser.parse_args()
    all_ = [Checkout(path, args.model, [args.p, args.n, args.d, args.np]) for path in args.checkouts]
    for checkout in all_:
        checkout.run()  # warm
    for turn in range(args.turns):
        for checkout in all_ if turn % 2 else all_[::-1]:
            checkout.seconds.append(checkout.run())
    for checkout in all_:
        ratios = [ours / first for ours, first in zip(checkout.seconds, all_[0].seconds, strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        print(f"{checkout.path}: median {median(checkout.seconds):.3f} s, ", end="")
        print(f"{middle:.3f} of the first ({low:.3f} to {high:.3f})")
        checkout.close()


if __name__ == "__main__":
    main()
