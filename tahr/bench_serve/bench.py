"""The whole bench: find the server, warm it up, press it, report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tahr.bench_serve.client import Connections, Target, fetch
from tahr.bench_serve.drive import press
from tahr.bench_serve.energy import energy_of, energy_since
from tahr.bench_serve.figures import LoadRun, run_of
from tahr.bench_serve.loads import Encode, Maker, make_maker
from tahr.bench_serve.measured import Load, Record, faults_of, measure
from tahr.bench_serve.plan import BenchPlan, Level
from tahr.errors import ServerError

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Cell:
    """All runs of one level."""

    level: Level
    runs: list[LoadRun]

    @property
    def n_errored(self) -> int:
        return sum(run.n_errored for run in self.runs)

    @property
    def n_requests(self) -> int:
        return self.n_errored + sum(run.n_completed for run in self.runs)


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """Who is asked, and what it says of itself."""

    target: Target
    model: str
    backend: str


async def find_server(target: Target, model: str | None) -> BenchTarget:
    """The model that was named or else the first that is served, and the backend where the server tells."""
    if model is None:
        listed = await fetch(target, "GET", "/v1/models")
        try:
            model = str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise ServerError("The server lists no models at /v1/models: name one with --model.") from error
    return BenchTarget(target, model, await backend_of(target, model))


async def backend_of(target: Target, model: str) -> str:
    """Only Tahr's /health tells it; other servers have other answers there."""
    try:
        health = await fetch(target, "GET", "/health")
        return str(health["models"][model]["backend"])
    except (ServerError, KeyError, TypeError):
        return "unknown"


def server_tokenizer(server: BenchTarget) -> Encode:
    """Tokenising by the server itself, at /tokenize."""

    async def encode(text: str) -> list[int]:
        if not text:  # recorded conversations may have none; some servers refuse it
            return []
        body = {"model": server.model, "prompt": text, "add_special_tokens": False}
        reply = await fetch(server.target, "POST", "/tokenize", body)
        tokens = reply.get("tokens") if isinstance(reply, dict) else None
        if not tokens:
            raise ServerError("The server's /tokenize gives no tokens: name the model's files with --tokenizer.")
        return list(tokens)

    return encode


async def bench(server: BenchTarget, plan: BenchPlan, encode: Encode, say: Say) -> list[Cell]:
    """Every level in turn."""
    maker = await make_maker(plan, server.model, encode)
    return [await bench_level(server, plan, maker, level, say) for level in plan.levels]


async def bench_level(server: BenchTarget, plan: BenchPlan, maker: Maker, level: Level, say: Say) -> Cell:
    connections = Connections(server.target)

    async def one(load: Load) -> Record:
        return await measure(connections, load, plan.timeout_s)

    if plan.n_warmup:
        say(f"{level.label}: warming up with {plan.n_warmup} requests")
        check_warmup(await press(level, maker.make(f"{level.label}/warm-up", plan.n_warmup), one, "warm-up"))
    runs = []
    for number in range(plan.n_repeats):
        name = f"{level.label}/{number}"
        say(f"{level.label}: run {number + 1} of {plan.n_repeats}, {plan.n_prompts} requests")
        before = await energy_of(server.target, server.model)
        records = await press(level, maker.make(name, plan.n_prompts), one, f"{plan.seed}/{name}/arrivals")
        energy = await energy_since(server.target, server.model, before)
        runs.append(run_of(records, plan.slo_ms, energy))
    connections.close()
    return Cell(level, runs)


def check_warmup(records: list[Record]) -> None:
    """A server that stumbles before anything counts would be measured stumbling."""
    found = {name: n for name, n in faults_of(records).items() if n}
    if found:
        shown = ", ".join(f"{name} {n}" for name, n in found.items())
        detail = next(record.detail for record in records if record.faults)
        raise ServerError(f"The warm-up went wrong, so nothing was measured ({shown}). The first was: {detail}")


def check_errors(plan: BenchPlan, cells: Sequence[Cell]) -> None:
    """Fail after the report, where failing was asked for."""
    n_errored = sum(c.n_errored for c in cells)
    n_requests = sum(c.n_requests for c in cells)
    most = 0.0 if plan.fail_on_error else plan.max_error_rate
    if most is not None and n_errored / n_requests > most:  # 0.29 * 100 would be less than 29
        detail = next(run.first_detail for cell in cells for run in cell.runs if run.n_errored)
        allowed = "none" if plan.fail_on_error else f"{most:.2%}"
        raise ServerError(f"{n_errored} of {n_requests} requests failed and {allowed} may. The first: {detail}")


def facts_of(plan: BenchPlan) -> dict[str, Any]:
    """Facts that shape the load, for the record."""
    return {
        "dataset": plan.dataset,
        "n_prompts": plan.n_prompts,
        "n_warmup": plan.n_warmup,
        "seed": plan.seed,
        "respect_eos": plan.respect_eos,
        "default_sampling": plan.default_sampling,
        "timeout_s": plan.timeout_s,
    }
