"""Records become figures. Times are reported in milliseconds, rates per second."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from tahr.bench_serve.measured import Record, faults_of
from tahr.bench_serve.plan import MIN_REPEATS_FOR_CI

PERCENTILES = (50, 75, 95, 99)
TIMES = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")
RATES = ("output_throughput", "total_throughput", "request_throughput", "goodput")
# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom.
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class LoadRun:
    """One pass over its requests: samples of times, one value of each rate."""

    times: dict[str, list[float]]
    rates: dict[str, float]
    n_completed: int
    n_errored: int
    duration_s: float
    n_prompt: int
    n_output: int
    faults: dict[str, int]
    first_detail: str


def run_of(records: list[Record], slo_ms: dict[str, float]) -> LoadRun:
    """The figures of one run. Only requests that succeeded count, but their time is the time of all."""
    good = [record for record in records if record.ok]
    duration_s = max(r.ended_at for r in records) - min(r.sent_at for r in records)
    n_prompt = sum(r.n_prompt for r in good)
    n_output = sum(r.n_output for r in good)
    totals = {
        "output_throughput": n_output, "total_throughput": n_prompt + n_output, "request_throughput": len(good),
    }  # fmt: skip
    if slo_ms:
        totals["goodput"] = sum(meets(record, slo_ms) for record in good)
    return LoadRun(
        times=times_of(good),
        rates={name: total / duration_s if duration_s else 0.0 for name, total in totals.items()},
        n_completed=len(good),
        n_errored=len(records) - len(good),
        duration_s=duration_s,
        n_prompt=n_prompt,
        n_output=n_output,
        faults=faults_of(records),
        first_detail=next((record.detail for record in records if not record.ok), ""),
    )


def times_of(good: list[Record]) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {
        "ttft_ms": [record.ttft_s for record in good],
        "tpot_ms": [record.tpot_s for record in good if record.tpot_s is not None],
        "itl_ms": [gap for record in good for gap in record.itl_s],
        "e2el_ms": [record.e2el_s for record in good],
    }
    return {name: [1e3 * value for value in values] for name, values in samples.items()}


def meets(record: Record, slo_ms: dict[str, float]) -> bool:
    """Whether a request was as fast as promised; a single token has no time per token to miss."""
    took = {"ttft": record.ttft_s, "tpot": record.tpot_s or 0.0, "e2el": record.e2el_s}
    return all(1e3 * took[name] <= most for name, most in slo_ms.items())


def distributions(runs: Sequence[LoadRun]) -> dict[str, dict[str, float | None]]:
    """Each figure over all runs: times over all requests of all runs, rates over the runs."""
    made = {}
    for name in TIMES:
        samples = [value for run in runs for value in run.times[name]]
        means = [fmean(run.times[name]) for run in runs if run.times[name]]
        if samples:
            made[name] = {**spread(samples), **percentiles(samples), "ci95": half_width(means)}
    for name in RATES:
        values = [run.rates[name] for run in runs if name in run.rates]
        if values:
            made[name] = {**spread(values), "ci95": half_width(values)}
    return made


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


def totals(runs: Sequence[LoadRun]) -> dict[str, Any]:
    """Counts of events, per run and in all."""
    return {
        "completed_per_run": [run.n_completed for run in runs],
        "errored_per_run": [run.n_errored for run in runs],
        "duration_s_per_run": [run.duration_s for run in runs],
        "prompt_tokens_per_run": [run.n_prompt for run in runs],
        "output_tokens_per_run": [run.n_output for run in runs],
        "faults": {name: sum(run.faults[name] for run in runs) for name in runs[0].faults},
    }
