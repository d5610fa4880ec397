"""When the loop delivers what: chunks that may wait, and what may not."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tahr.generation.delivery import AT_ONCE, Dispatcher


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


class SlowQueue:
    """A queue whose delivery takes CPU time."""

    finished = whole = scheduled = False
    begun = True

    def deliver(self) -> None:
        end = time.thread_time() + 0.004
        while time.thread_time() < end:
            pass


@pytest.mark.parametrize(("n_streams", "least_s", "most_s"), [(1, 0.032, 0.04), (20, 0.04, 0.04), (0, 0.01, 0.01)])
def test_deliveries_that_take_long_are_made_less_often(n_streams: int, least_s: float, most_s: float) -> None:
    delays: list[float] = []

    class TimerLoop:
        def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
            callback()

        def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
            callback(*args)

        def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
            delays.append(delay_s)

    dispatcher = Dispatcher(TimerLoop(), threading.Lock(), 0.01)  # type: ignore[arg-type]
    dispatcher.deliver()
    dispatcher.notify([SlowQueue() for _ in range(n_streams)])  # type: ignore[misc]
    dispatcher._end_interval()
    if not n_streams:
        dispatcher.deliver()
    assert delays[0] == 0.01 and least_s <= delays[1] <= most_s


class NotedQueue:
    """A queue that writes its number down when it is delivered, and after that lets something happen."""

    finished = whole = scheduled = False
    begun = True

    def __init__(self, number: int, order: list[int], then: Callable[[], None] = lambda: None):
        self.number, self.order, self.then = number, order, then

    def deliver(self) -> None:
        self.order.append(self.number)
        self.then()


def test_an_end_need_not_wait_for_all_delayed_chunks() -> None:
    order: list[int] = []

    async def main() -> None:
        dispatcher = Dispatcher(asyncio.get_running_loop(), threading.Lock(), 0.01)
        ended = NotedQueue(-1, order)
        ended.finished = True
        queues = [NotedQueue(n, order) for n in range(5 * AT_ONCE)]
        queues[AT_ONCE // 2].then = lambda: dispatcher.notify([ended])  # type: ignore[list-item]
        dispatcher.deliver()
        dispatcher.notify(queues)  # type: ignore[arg-type]
        await until(lambda: len(order) == len(queues) + 1)
        await until(lambda: not dispatcher._in_interval)  # it ends when nothing comes any more

    asyncio.run(main())
    assert order[AT_ONCE] == -1 and sorted(order) == list(range(-1, 5 * AT_ONCE))
