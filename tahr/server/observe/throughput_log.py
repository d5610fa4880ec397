"""A line of log that says how fast each model runs, while it runs."""

import asyncio
import logging
from weakref import WeakKeyDictionary

from tahr.server.models.engine_port import ServedEngine
from tahr.server.models.registry import ModelRegistry, ServedModel
from tahr.server.observe.request_log import logfmt

log = logging.getLogger("tahr.server")


async def report_throughput(models: ModelRegistry, interval_s: float) -> None:
    """A line per interval and model that has computed a token since the last line."""
    # an engine that is loaded again counts anew
    last: WeakKeyDictionary[ServedEngine, tuple[int, int]] = WeakKeyDictionary()
    while interval_s:
        await asyncio.sleep(interval_s)
        for model in models.loaded:
            last[model.engine] = report(model, last.get(model.engine, (0, 0)), interval_s)


def report(model: ServedModel, before: tuple[int, int], interval_s: float) -> tuple[int, int]:
    now = model.engine.snapshot()
    counts = now.tokens_prefilled, now.tokens_generated
    if counts != before and before != (0, 0):
        facts = {
            "model": model.name,
            "running": now.requests_running,
            "waiting": now.requests_waiting,
            "prompt_tokens_per_s": round((counts[0] - before[0]) / interval_s, 1),
            "tokens_per_s": round((counts[1] - before[1]) / interval_s, 1),
            "kv_used": f"{now.pages_used}/{now.pages_total}",
        }
        log.info("busy %s", logfmt(facts))
    return counts
