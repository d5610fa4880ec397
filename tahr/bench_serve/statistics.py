"""Means, percentiles and confidence intervals of samples."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from tahr.bench_serve.plan import MIN_REPEATS_FOR_CI

PERCENTILES = (50, 75, 95, 99)

# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom.
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

Z95 = 1.959964


def spread(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": fmean(values), "stddev": stdev(values) if len(values) > 1 else 0.0}


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    return {f"p{p}": percentile(ordered, p / 100) for p in PERCENTILES}


def percentile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest samples, in proportion."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = math.ceil(at)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def half_width(values: Sequence[float]) -> float | None:
    """Half of the 95 % confidence interval of the mean of runs; None where there are too few to say."""
    n = len(values)
    return t95(n - 1) * stdev(values) / math.sqrt(n) if n >= MIN_REPEATS_FOR_CI else None


def t95(n_free: int) -> float:
    """Student's t; beyond the table the first two terms of its expansion are exact to four digits."""
    if n_free <= len(T95):
        return T95[n_free - 1]
    return Z95 + (Z95**3 + Z95) / (4 * n_free) + (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / (96 * n_free**2)
