"""Records become figures. Times are reported in milliseconds, rates per second."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tahr.bench_serve.energy import Energy, millijoules_per_token
from tahr.bench_serve.measured import Record, faults_of
from tahr.bench_serve.statistics import half_width, percentiles, spread

TIMES = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")

RATES = ("output_throughput", "total_throughput", "request_throughput", "goodput")
ENERGY = ("mj_per_prompt_token", "mj_per_output_token")


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


def run_of(records: list[Record], slo_ms: dict[str, float], energy: Energy | None = None) -> LoadRun:
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
    rates = {name: total / duration_s if duration_s else 0.0 for name, total in totals.items()}
    return LoadRun(
        times=times_of(good),
        rates=rates | (millijoules_per_token(energy, n_prompt, n_output) if energy else {}),
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
    for name in (*RATES, *ENERGY):
        values = [run.rates[name] for run in runs if name in run.rates]
        if values:
            made[name] = {**spread(values), "ci95": half_width(values)}
    return made


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
