"""The event loop of servers and of the clients that measure them."""

import asyncio
from collections.abc import Callable
from importlib.util import find_spec


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it exists."""
    if not find_spec("uvloop"):
        return None
    import uvloop

    return uvloop.new_event_loop
