"""Presses a server as hard as a level says."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from tahr.bench_serve.measured import Load, Record
from tahr.bench_serve.plan import Level

Measure = Callable[[Load], Awaitable[Record]]


async def press(level: Level, loads: Sequence[Load], measure: Measure, seed: str) -> list[Record]:
    """All requests, and what became of them."""
    if level.rate is None:
        assert level.concurrency
        return await closed_loop(loads, level.concurrency, measure)
    return await open_loop(loads, level.rate, measure, random.Random(seed))


async def closed_loop(loads: Sequence[Load], concurrency: int, measure: Measure) -> list[Record]:
    """Run `concurrency` clients, each of which sends its next request when its last one has ended."""
    left = iter(loads)
    records: list[Record] = []

    async def client() -> None:
        for load in left:
            records.append(await measure(load))

    await asyncio.gather(*(client() for _ in range(min(concurrency, len(loads)))))
    return records


async def open_loop(loads: Sequence[Load], rate: float, measure: Measure, rng: random.Random) -> list[Record]:
    """Requests come when they come (a Poisson process), whether or not earlier ones have ended."""
    clock = asyncio.get_running_loop().time
    due = clock()
    tasks = []
    for load in loads:
        await asyncio.sleep(max(0.0, due - clock()))
        tasks.append(asyncio.ensure_future(measure(load)))
        due += rng.expovariate(rate)  # counted from the due time, so that a late wake-up does not lower the rate
    return list(await asyncio.gather(*tasks))
