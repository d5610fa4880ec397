"""Counters, gauges and histograms, written in the text format Prometheus reads."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Metric:
    """A counter or a gauge: one value per set of labels, the same under each of its names."""

    kind: str
    names: tuple[str, ...]
    help: str
    values: dict[Labels, float] = field(default_factory=dict)

    def add(self, labels: Labels, amount: float = 1) -> None:
        self.values[labels] = self.values.get(labels, 0) + amount

    def set(self, labels: Labels, value: float) -> None:
        self.values[labels] = value

    def lines(self, name: str) -> Iterator[str]:
        for labels, value in self.values.items():
            yield f"{name}{braces(labels)} {number(value)}"


@dataclass(slots=True)
class HistogramCounts:
    """The observations of a histogram under one set of labels."""

    per_bucket: list[int]
    total: float = 0.0


@dataclass(slots=True)
class Histogram:
    """How many values fell into each bucket, per set of labels, the same under each of its names."""

    names: tuple[str, ...]
    help: str
    bounds: Sequence[float]
    kind: str = "histogram"
    counts: dict[Labels, HistogramCounts] = field(default_factory=dict)

    def observe(self, labels: Labels, value: float, times: int = 1) -> None:
        found = self.counts.get(labels)
        if found is None:
            found = self.counts[labels] = HistogramCounts([0] * (len(self.bounds) + 1))
        found.per_bucket[bisect_left(self.bounds, value)] += times
        found.total += value * times

    def lines(self, name: str) -> Iterator[str]:
        for labels, counts in self.counts.items():
            n_so_far = 0
            for bound, n in zip([*map(number, self.bounds), "+Inf"], counts.per_bucket, strict=True):
                n_so_far += n
                yield f"{name}_bucket{braces((*labels, ('le', bound)))} {n_so_far}"
            yield f"{name}_sum{braces(labels)} {number(counts.total)}"
            yield f"{name}_count{braces(labels)} {n_so_far}"


def number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def braces(labels: Labels) -> str:
    inside = ",".join(f'{name}="{escaped(value)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def exposition(families: Sequence[Metric | Histogram]) -> bytes:
    """All families as text."""
    lines: list[str] = []
    for family in families:
        for name in family.names:
            lines += [f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}", *family.lines(name)]
    return ("\n".join(lines) + "\n").encode()
