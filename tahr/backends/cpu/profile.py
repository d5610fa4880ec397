"""Where the time of a step goes: with TAHR_PROFILE=1 every op of every step is timed, and a table says so at exit."""

import atexit
import ctypes
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from tahr import _native as native

VARIABLE = "TAHR_PROFILE"
# A step of one token is a matter of memory, one of many a matter of arithmetic: sums over both would say nothing.
SIZES = {1: "steps of 1 token", 16: "steps of 2 to 16 tokens", sys.maxsize: "steps of more than 16 tokens"}


@dataclass(frozen=True, slots=True)
class Label:
    """Name of an op, `n_bytes` of weights it reads, `n_ops` operations per row; 0: not known."""

    name: str
    n_bytes: int = 0
    n_ops: int = 0
    n_rows: int = 0  # the address of the number of rows


@dataclass(slots=True)
class Booked:
    """All runs of ops with the same label in steps of about the same size."""

    count: int = 0
    nanoseconds: int = 0
    n_bytes: int = 0
    n_ops: int = 0


class Profile:
    """Time by size of step and label, since the first step."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns):
        self._clock = clock
        self._begin = self._end = 0
        self._n_steps: dict[str, int] = {}
        self._booked: dict[str, dict[str, Booked]] = {}

    def run(self, run: Callable[[], list[int]], labels: list[Label]) -> None:
        """Run a tape, which returns the nanoseconds of each op, and book them."""
        self._begin = self._begin or self._clock()
        spent = run()
        self._end = self._clock()
        n_tokens = next((number_at(label.n_rows) for label in labels if label.n_rows), 0)
        size = next(name for most, name in SIZES.items() if n_tokens <= most)
        self._n_steps[size] = self._n_steps.get(size, 0) + 1
        ops = self._booked.setdefault(size, {})
        for label, nanoseconds in zip(labels, spent, strict=True):
            booked = ops.setdefault(label.name, Booked())
            booked.count += 1
            booked.nanoseconds += nanoseconds
            booked.n_bytes += label.n_bytes
            booked.n_ops += label.n_ops * number_at(label.n_rows)

    def report(self) -> str:
        """A table for each size of step, the most expensive ops first."""
        total = sum(b.nanoseconds for ops in self._booked.values() for b in ops.values())
        wall = self._end - self._begin
        lines = [f"{VARIABLE}: ops took {total / 1e6:.1f} ms of {wall / 1e6:.1f} ms from the first step to the last"]
        for size, ops in self._booked.items():
            mine = sum(b.nanoseconds for b in ops.values())
            lines.append(f"\n{self._n_steps[size]} {size}, {mine / 1e6:.1f} ms")
            lines.append(f"  {'op':<34} {'count':>8} {'ms':>10} {'share':>7} {'GB/s':>7} {'GOP/s':>7}")
            lines += [row(name, b, mine) for name, b in sorted(ops.items(), key=lambda p: -p[1].nanoseconds)]
        return "\n".join(lines)


def number_at(address: int) -> int:
    return ctypes.c_int32.from_address(address).value if address else 0


def row(name: str, booked: Booked, total: int) -> str:
    nanoseconds = booked.nanoseconds or 1
    rates = [f"{n / nanoseconds:7.1f}" if n else " " * 7 for n in (booked.n_bytes, booked.n_ops)]
    share = 100 * booked.nanoseconds / (total or 1)
    return f"  {name:<34} {booked.count:8d} {booked.nanoseconds / 1e6:10.2f} {share:5.1f} % {' '.join(rates)}".rstrip()


class TimedTape:
    """A tape that remembers what its ops are and books their time."""

    def __init__(self, isa: str, profile: Profile):
        self._tape = native.Tape(isa)
        self._profile = profile
        self._labels: list[Label] = []

    def __getattr__(self, op: str) -> Callable[..., Any]:
        record = getattr(self._tape, op)

        def add(**values: Any) -> None:
            record(**values)
            self._labels += [label_of(op, values)] * (len(self._tape) - len(self._labels))

        return add

    def __len__(self) -> int:
        return len(self._tape)

    @property
    def address(self) -> int:
        """The tape itself: what native code runs is not booked."""
        return self._tape.address

    def clear(self) -> None:
        self._tape.clear()
        self._labels.clear()

    def run(self, pool: native.Pool) -> None:
        if self._labels:
            self._profile.run(lambda: self._tape.run_timed(pool), self._labels)


def label_of(op: str, values: dict[str, Any]) -> Label:
    """Products by format and shape, everything else by the name of the op."""
    matrices = [job[0] for job in values.get("jobs", ())]
    if not matrices:
        return Label(op, n_rows=values.get("n_rows", 0))
    formats = "+".join(dict.fromkeys(m.format.lower() for m in matrices))
    n_rows = "+".join(str(m.shape[1]) for m in matrices)
    name = f"{op} {formats} {n_rows} x {matrices[0].shape[2]}"
    if op != "linear":  # the step decides whose matrices experts read
        return Label(name)
    n_ops = sum(2 * m.shape[1] * m.shape[2] for m in matrices)
    return Label(name, sum(m.n_bytes for m in matrices), n_ops, values["n_rows"])


_profiles: list[Profile] = []


def profile_of_process() -> Profile:
    """The one that is printed when the process ends."""
    if not _profiles:
        _profiles.append(Profile())
        atexit.register(lambda: print(_profiles[0].report(), file=sys.stderr))
    return _profiles[0]


def timed_tape(isa: str) -> native.Tape:
    """A tape whose ops count in the profile of the process."""
    return cast(native.Tape, TimedTape(isa, profile_of_process()))
