"""A line of log that says how fast each model runs, while it runs."""

import asyncio
import logging
from dataclasses import dataclass
from time import monotonic
from weakref import WeakKeyDictionary

from tahr.engine.sequences.stats import StatsSnapshot
from tahr.server.models.engine_port import ServedEngine
from tahr.server.models.registry import ModelRegistry
from tahr.server.observe.request_log import logfmt

log = logging.getLogger("tahr.server")


@dataclass(frozen=True, slots=True)
class ThroughputMark:
    """The tokens that a model had computed at a time, which are counted when a step ends."""

    n_prompt: int
    n_generated: int
    time_s: float
    rests: bool  # no request was there

    @classmethod
    def of(cls, now: StatsSnapshot, time_s: float) -> "ThroughputMark":
        rests = not now.requests_running and not now.requests_waiting
        return cls(now.tokens_prefilled, now.tokens_generated, time_s, rests)


async def report_throughput(models: ModelRegistry, interval_s: float) -> None:
    """A line per interval and model that has computed a token since the last line."""
    # an engine that is loaded again counts anew
    last: WeakKeyDictionary[ServedEngine, ThroughputMark] = WeakKeyDictionary()
    while interval_s:
        await asyncio.sleep(interval_s)
        for model in models.loaded:
            last[model.engine] = report(model.name, model.engine.snapshot(), last.get(model.engine), monotonic())


def report(model: str, now: StatsSnapshot, before: ThroughputMark | None, time_s: float) -> ThroughputMark:
    """Log what was computed since a mark, and return the one to compare with next.

    Tokens of a step that outlasts several intervals are spread over all of them.
    """
    mark = ThroughputMark.of(now, time_s)
    if before is None:
        return mark
    n_prompt = mark.n_prompt - before.n_prompt
    n_generated = mark.n_generated - before.n_generated
    if not n_prompt and not n_generated:
        return mark if mark.rests or before.rests else before
    passed_s = time_s - before.time_s
    facts = {
        "model": model,
        "running": now.requests_running,
        "waiting": now.requests_waiting,
        "prompt_tokens_per_s": round(n_prompt / passed_s, 1),
        "tokens_per_s": round(n_generated / passed_s, 1),
        "kv_used": f"{now.pages_used}/{now.pages_total}",
    }
    log.info("busy %s", logfmt(facts))
    return mark
