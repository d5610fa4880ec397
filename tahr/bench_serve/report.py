"""Results of a bench, for programs and for people."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from tahr.bench_serve.bench import BenchTarget, Cell, facts_of
from tahr.bench_serve.figures import ENERGY, RATES, TIMES, distributions, totals
from tahr.bench_serve.loads import N_INPUT
from tahr.bench_serve.plan import BenchPlan

Report = dict[str, Any]

NAMES = {
    "ttft_ms": "time to first token, ms",
    "tpot_ms": "time per output token, ms",
    "itl_ms": "between chunks, ms",
    "e2el_ms": "whole request, ms",
    "output_throughput": "output tokens/s",
    "total_throughput": "prompt and output tokens/s",
    "request_throughput": "requests/s",
    "goodput": "requests/s within the promise",
    "mj_per_prompt_token": "mJ per prompt token",
    "mj_per_output_token": "mJ per output token",
}
COLUMNS = ("mean", "stddev", "ci95", "p50", "p75", "p95", "p99")


def reports(
    server: BenchTarget,
    plan: BenchPlan,
    cells: Sequence[Cell],
    env: dict[str, Any],
) -> list[Report]:
    """One record per level."""
    full_env = {**env, "flags": facts_of(plan)}
    return [record(server, plan, cell, full_env) for cell in cells]


def record(server: BenchTarget, plan: BenchPlan, cell: Cell, env: dict[str, Any]) -> Report:
    return {
        "model": server.model,
        "backend": server.backend,
        "scenario": plan.scenario,
        "concurrency": cell.level.concurrency,
        "request_rate": cell.level.rate,
        **lengths(plan),
        "n_repeats": plan.n_repeats,
        "slo_ms": plan.slo_ms or None,
        **totals(cell.runs),
        "distributions": distributions(cell.runs),
        "env": env,
        "env_hash": env_hash(env),
    }


def lengths(plan: BenchPlan) -> dict[str, int | None]:
    """Tokens per request; those of a file differ from request to request."""
    if plan.dataset == "sharegpt":
        return {"n_prompt": None, "n_prefix": 0, "n_gen": None}
    n_prefix = plan.n_prefix if plan.dataset == "shared-prefix" else 0
    return {
        "n_prompt": n_prefix + (plan.n_input or N_INPUT[plan.dataset]),
        "n_prefix": n_prefix,
        "n_gen": plan.n_output,
    }


def env_hash(env: dict[str, Any]) -> str:
    """Equal for equal environments, however they were written down."""
    canonical = json.dumps(env, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def label(report: Report) -> str:
    if report["request_rate"] is None:
        return f"concurrency {report['concurrency']}"
    return f"{report['request_rate']:g} requests/s"


def as_json(made: Sequence[Report]) -> str:
    return json.dumps(list(made), indent=1)


def as_jsonl(made: Sequence[Report]) -> str:
    return "\n".join(json.dumps(each) for each in made)


def as_markdown(made: Sequence[Report]) -> str:
    first = made[0]
    head = f"# {first['model']} on {first['backend']}: {first['scenario']}"
    return "\n\n".join([head, *(section(each) for each in made), f"environment {first['env_hash'][:16]}"])


def section(report: Report) -> str:
    n_ok = sum(report["completed_per_run"])
    n_bad = sum(report["errored_per_run"])
    shape = "" if report["n_prompt"] is None else f", {report['n_prompt']} tokens in, {report['n_gen']} out"
    seen = [f"{name} {n}" for name, n in report["faults"].items() if n]
    lines = [
        f"## {label(report)}{shape}", "",
        f"{n_ok} requests completed, {n_bad} failed" + (f" ({', '.join(seen)})" if seen else "") + ".", "",
        f"| | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|",
    ]  # fmt: skip
    found = report["distributions"]
    return "\n".join(lines + [row(NAMES[name], found[name]) for name in (*RATES, *ENERGY, *TIMES) if name in found])


def row(name: str, figures: dict[str, float | None]) -> str:
    return f"| {name} | {' | '.join(cell(figures.get(column)) for column in COLUMNS)} |"


def cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


FORMATS = {"md": as_markdown, "json": as_json, "jsonl": as_jsonl}
