"""The line of log that says how fast the server is, while it is doing something."""

import asyncio
import logging

from tahr.server.observe.server_metrics import logfmt
from tahr.server.state import Front, Served

log = logging.getLogger("tahr.server")


async def report_throughput(front: Front) -> None:
    """A line per interval and model, only if it has read or written a token since the last."""
    every_s = front.settings.log_interval_s
    last: dict[str, tuple[int, int]] = {}
    while every_s:
        await asyncio.sleep(every_s)
        for model in front.models:
            last[model.name] = report(model, last.get(model.name, (0, 0)), every_s)


def report(model: Served, before: tuple[int, int], every_s: float) -> tuple[int, int]:
    now = model.engine.snapshot()
    counts = now.tokens_prefilled, now.tokens_generated
    if counts != before and before != (0, 0):
        facts = {
            "model": model.name,
            "running": now.requests_running,
            "waiting": now.requests_waiting,
            "prompt_tokens_per_s": round((counts[0] - before[0]) / every_s, 1),
            "tokens_per_s": round((counts[1] - before[1]) / every_s, 1),
            "kv_used": f"{now.pages_used}/{now.pages_total}",
        }
        log.info("busy %s", logfmt(facts))
    return counts
