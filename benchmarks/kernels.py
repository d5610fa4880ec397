"""Matrix kernels beside the machine's roof, measured in the same run: GB/s for one row, GOP/s for many.

usage: benchmarks/kernels.py [--formats Q4_0,Q8_0] [--isa avx2] [-t THREADS] [--rows 1,4,256] [--shape 2048x2048]
       [--stream MIB] [--roof-seconds S] [--json FILE]
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tahr import _native as native
from tahr.tools.environment import environment, line
from tahr.weights.formats import FORMATS

NATIVE_FORMATS = "F32,F16,BF16,Q8_0,Q4_0,Q4_1,Q5_0,Q5_1,Q2_K,Q3_K,Q4_K,Q5_K,Q6_K,IQ4_NL,IQ4_XS,MXFP4"
PART_BYTES = 8 << 20
STREAM_MIB = 192  # of weights one-row products walk through: more than the caches of most machines hold
ROUND_S = 0.3
ROOF_S = 2.0


@dataclass(frozen=True)
class Machine:
    """The pool and instruction set under test, and what they can do at best."""

    isa: str
    pool: native.Pool
    stream_bytes: int
    read_bytes_per_s: float
    int_ops_per_s: float
    float_ops_per_s: float


def address(array: NDArray[np.generic]) -> int:
    return int(array.ctypes.data)


def clock_of(pool: native.Pool) -> Callable[[], float]:
    """A pool of one is the calling thread: its own CPU time leaves out what other processes do meanwhile."""
    return time.thread_time if pool.n_threads == 1 else time.perf_counter


def seconds_of(runs: Sequence[Callable[[], None]], duration_s: float, pool: native.Pool) -> list[float]:
    """Seconds of each run, fastest first: as many as fit into the time, two of each at least."""
    clock = clock_of(pool)
    seconds: list[float] = []
    end = time.perf_counter() + duration_s
    while len(seconds) < 2 * len(runs) or time.perf_counter() < end:
        begin = clock()
        runs[len(seconds) % len(runs)]()
        seconds.append(clock() - begin)
    return sorted(seconds)


def good_seconds(runs: Sequence[Callable[[], None]], pool: native.Pool) -> float:
    """What an undisturbed run takes: the fastest twentieth, because the very fastest may have met a warm cache."""
    seconds = seconds_of(runs, ROUND_S, pool)
    return seconds[len(seconds) // 20]


def measure(isa: str, n_threads: int, stream_bytes: int = STREAM_MIB << 20, roof_s: float = ROOF_S) -> Machine:
    """The roofs: a loop that only reads, one that only multiplies int8, one that only multiplies f32."""
    pool = native.Pool(n_threads)
    data = np.full(stream_bytes // PART_BYTES * PART_BYTES, 1, np.uint8)

    def tape(kind: str, part: NDArray[np.uint8], n_repeats: int = 0) -> Callable[[], None]:
        tape = native.Tape(isa)
        tape.roof(kind=kind, data=address(part), n_bytes=part.nbytes, n_repeats=n_repeats)
        return partial(tape.run, pool)

    # A core shared with other work runs at half speed for long stretches, so only the fastest run is a roof. Kernels
    # are not given that favour: their shares come out low when disturbed. A share above 100% says the roof was
    # disturbed all the time, and that the run is worth nothing. Runs are long: a clock of CPU time errs by some 10 us.
    def ops_per_s(kind: str, n_repeats: int = 1 << 16) -> float:
        seconds = seconds_of([tape(kind, data, n_repeats)], roof_s, pool)[0]
        return native.Tape(isa).roof_work(kind) * n_repeats * n_threads / seconds

    read_s = seconds_of([tape("bytes", part) for part in data.reshape(-1, PART_BYTES)], roof_s, pool)[0]
    return Machine(isa, pool, stream_bytes, PART_BYTES / read_s, ops_per_s("ints"), ops_per_s("floats"))


class Product:
    """`n_rows` rows times matrices of one format, ready to run again and again."""

    def __init__(self, machine: Machine, name: str, shape: tuple[int, int], n_rows: int, n_matrices: int) -> None:
        rows, cols = shape
        self.machine = machine
        # A byte that makes sane scales and numbers in every format.
        file = np.full(rows * cols // FORMATS[name].block * FORMATS[name].block_bytes, 0x3C, np.uint8)
        self.matrices = [native.Matrix(name, machine.isa, 1, rows, cols) for _ in range(n_matrices)]
        for matrix in self.matrices:
            matrix.fill(0, matrix.n_panels, address(file), file.nbytes, machine.pool)
        self.x = np.random.default_rng(0).standard_normal((n_rows, cols)).astype(np.float32)
        self.quantised = np.zeros(n_rows * native.quantised_row_bytes(cols), np.uint8)
        self.out = np.zeros((n_rows, rows), np.float32)
        self.count = np.array([n_rows], np.int32)
        self.quantise()
        self.tapes = [self.tape(matrix) for matrix in self.matrices]

    def tape(self, matrix: native.Matrix) -> native.Tape:
        tape = native.Tape(self.machine.isa)
        tape.linear(
            n_rows=address(self.count),
            x=address(self.x),
            quantised=address(self.quantised),
            jobs=[(matrix, address(self.out), 0)],
        )
        return tape

    def quantise(self) -> None:
        tape = native.Tape(self.machine.isa)
        tape.quantise(n_rows=address(self.count), cols=self.x.shape[1], x=address(self.x), out=address(self.quantised))
        tape.run(self.machine.pool)

    def seconds(self) -> float:
        """For one matrix."""
        return good_seconds([partial(tape.run, self.machine.pool) for tape in self.tapes], self.machine.pool)


@dataclass(frozen=True, slots=True)
class Figure:
    """How fast `n_rows` rows times one matrix is, and how much of what binds it: reading, or arithmetic."""

    format: str
    n_rows: int
    bytes_per_s: float
    ops_per_s: float
    share: float

    def cell(self) -> str:
        return f"{self.bytes_per_s / 1e9:6.1f} GB/s {self.ops_per_s / 1e9:7.0f} GOP/s {self.share:4.0%}"


def measured(machine: Machine, name: str, shape: tuple[int, int], n_rows: int) -> Figure:
    """One row is a matter of bytes, many rows of operations, a few of both."""
    file_bytes = shape[0] * shape[1] // FORMATS[name].block * FORMATS[name].block_bytes
    product = Product(machine, name, shape, n_rows, -(-machine.stream_bytes // file_bytes) if n_rows < 32 else 1)
    seconds = product.seconds()
    n_bytes, n_ops = product.matrices[0].n_bytes, 2 * shape[0] * shape[1] * n_rows
    roof = machine.float_ops_per_s if product.matrices[0].dense else machine.int_ops_per_s
    share = max(n_bytes / machine.read_bytes_per_s, n_ops / roof) / seconds
    return Figure(name, n_rows, n_bytes / seconds, n_ops / seconds, share)


def table(machine: Machine, names: list[str], shape: tuple[int, int], row_counts: list[int]) -> Iterator[list[Figure]]:
    """A list per format, printed as a line of the table when it is there."""
    heads = "  ".join(f"{n} row{'s' * (n > 1)}".rjust(30) for n in row_counts)
    print(f"{'format':7s} {'packed/file':>11s}  {heads}", flush=True)
    for name in names:
        print(f"\r{name} ", end="", file=sys.stderr, flush=True)
        packed = native.packed_bytes(name, machine.isa, 1, *shape)
        file = shape[0] * shape[1] // FORMATS[name].block * FORMATS[name].block_bytes
        figures = [measured(machine, name, shape, n) for n in row_counts]
        print("\r\033[K", end="", file=sys.stderr)
        print(f"{name:7s} {packed / file:11.3f}  {'  '.join(figure.cell() for figure in figures)}", flush=True)
        yield figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", default=NATIVE_FORMATS)
    parser.add_argument("--isa", default=native.isas()[0], choices=native.isas())
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rows", default="1,4,256")
    parser.add_argument("--shape", default="2048x2048", help="rows x columns of the matrices")
    parser.add_argument("--stream", type=int, default=STREAM_MIB, help="MiB of weights one row walks through")
    parser.add_argument("--roof-seconds", type=float, default=ROOF_S, help="seconds each roof is looked for")
    parser.add_argument("--json", type=Path, metavar="FILE", help="figures for roof_plot.py")
    wanted = parser.parse_args()
    rows, cols = (int(n) for n in wanted.shape.split("x"))
    machine, facts = measure(wanted.isa, wanted.threads, wanted.stream << 20, wanted.roof_seconds), environment()
    print(line(facts))
    print(
        f"{os.uname().machine}, {wanted.isa}, {wanted.threads} threads, matrices {rows} x {cols}; roof: "
        f"{machine.read_bytes_per_s / 1e9:.1f} GB/s, int8 {machine.int_ops_per_s / 1e9:.0f} GOP/s, "
        f"f32 {machine.float_ops_per_s / 1e9:.0f} GOP/s; %: share of the roof that binds"
    )
    row_counts = [int(n) for n in wanted.rows.split(",")]
    figures = [f for some in table(machine, wanted.formats.split(","), (rows, cols), row_counts) for f in some]
    if wanted.json:
        run = {"isa": wanted.isa, "n_threads": wanted.threads, "shape": [rows, cols]}
        roofs = {k: getattr(machine, k) for k in ("read_bytes_per_s", "int_ops_per_s", "float_ops_per_s")}
        record = {"environment": facts, **run, "roofs": roofs, "figures": [asdict(f) for f in figures]}
        wanted.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
