"""Work on threads, for tasks that may be cancelled meanwhile."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def to_the_end(work: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
    """Run on a thread. A cancelled task goes on when the thread has ended: it may use what the task closes.

    `undo` is given a result that comes too late.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if undo and not running.cancelled() and not running.exception():
            undo(running.result())
        raise
