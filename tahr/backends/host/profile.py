"""Where the time of a step goes: with TAHR_PROFILE=1 every op of every step is timed, and a table says so at exit."""

import atexit
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

VARIABLE = "TAHR_PROFILE"
# A step of one token is a matter of memory, one of many a matter of arithmetic: sums over both would say nothing.
SIZES = {1: "steps of 1 token", 16: "steps of 2 to 16 tokens", sys.maxsize: "steps of more than 16 tokens"}


@dataclass(frozen=True, slots=True)
class Label:
    """Name of an op, `n_bytes` of weights it reads, `n_ops` operations per row; 0: not known."""

    name: str
    n_bytes: int = 0
    n_ops: int = 0


@dataclass(frozen=True, slots=True)
class TimedOp:
    """A run of an op, on so many rows; None: not known."""

    label: Label
    nanoseconds: int
    n_rows: int | None = None


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
        self.unbooked: list[Callable[[], None]] = []  # called before a report: they book what is in flight

    def begin(self) -> None:
        """A step begins."""
        self._begin = self._begin or self._clock()

    def book(self, n_tokens: int, ops: Iterable[TimedOp]) -> None:
        """A step has ended, by now."""
        self._end = self._clock()
        size = next(name for most, name in SIZES.items() if n_tokens <= most)
        self._n_steps[size] = self._n_steps.get(size, 0) + 1
        found = self._booked.setdefault(size, {})
        for op in ops:
            booked = found.setdefault(op.label.name, Booked())
            booked.count += 1
            booked.nanoseconds += op.nanoseconds
            booked.n_bytes += op.label.n_bytes
            booked.n_ops += op.label.n_ops * (op.n_rows or 0)

    def report(self) -> str:
        """A table for each size of step, the most expensive ops first."""
        for book in self.unbooked:
            book()
        total = sum(b.nanoseconds for ops in self._booked.values() for b in ops.values())
        wall = self._end - self._begin
        lines = [f"{VARIABLE}: ops took {total / 1e6:.1f} ms of {wall / 1e6:.1f} ms from the first step to the last"]
        for size, ops in self._booked.items():
            mine = sum(b.nanoseconds for b in ops.values())
            lines.append(f"\n{self._n_steps[size]} {size}, {mine / 1e6:.1f} ms")
            lines.append(f"  {'op':<34} {'count':>8} {'ms':>10} {'share':>7} {'GB/s':>7} {'GOP/s':>7}")
            lines += [row(name, b, mine) for name, b in sorted(ops.items(), key=lambda p: -p[1].nanoseconds)]
        return "\n".join(lines)


def row(name: str, booked: Booked, total: int) -> str:
    nanoseconds = booked.nanoseconds or 1
    rates = [f"{n / nanoseconds:7.1f}" if n else " " * 7 for n in (booked.n_bytes, booked.n_ops)]
    share = 100 * booked.nanoseconds / (total or 1)
    return f"  {name:<34} {booked.count:8d} {booked.nanoseconds / 1e6:10.2f} {share:5.1f} % {' '.join(rates)}".rstrip()


def product_name(op: str, formats: Iterable[str], heights: Iterable[int], width: int) -> str:
    """Products are told apart by the formats and shapes of their matrices, which lie side by side."""
    names = "+".join(dict.fromkeys(name.lower() for name in formats))
    return f"{op} {names} {'+'.join(map(str, heights))} x {width}"


_profiles: list[Profile] = []


def profile_of_process() -> Profile:
    """The one that is printed when the process ends."""
    if not _profiles:
        _profiles.append(Profile())
        atexit.register(lambda: print(_profiles[0].report(), file=sys.stderr))
    return _profiles[0]
