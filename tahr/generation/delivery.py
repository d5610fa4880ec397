"""How the chunks of a step reach their readers in an event loop that has other work to do.

After a step the engine's thread wakes the loop once for all streams, and not at all while the loop has not run since
the last time: a loop that is busy elsewhere costs nothing, and a reader that lags gets everything it missed as one
chunk. A reader that wants the whole reply is woken once, at its end. Waking a task for every token may cost more than
what the task does with it, so readers pass a callback and the loop calls it directly.

On a machine whose cores all compute, each wake-up pushes a kernel off its core and finds the caches cold. With an
interval between two deliveries, what comes meanwhile is delivered as one chunk, and the engine need not even wake the
loop; only the first chunk of a stream and its last are never delayed. The interval grows with the number of streams:
the loop and the engine share one interpreter, and what a delivery takes is taken from the engine. What was delayed is
delivered some streams at a time, so that requests, first chunks and ends need not wait for all.
"""

import asyncio
import atexit
import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf
from contextlib import suppress
from itertools import islice
from typing import Any

from tahr.generation.outputs import Chunk, Request

Loop = asyncio.AbstractEventLoop
OnChunk = Callable[[Chunk], bool]  # whether the reader wants more at once
Outcome = tuple["asyncio.Future[Any]", Any, Exception | None]  # a command's future, its result, its error
MOST_SHARE = 1 / 8  # limit on the share of the loop's time for deliveries before the interval grows
MOST_LONGER = 4  # factor on the interval of few streams, at most
AT_ONCE = 16  # streams that get their delayed chunks before the loop turns to what cannot wait


class Dispatcher:
    """Which queues of one loop have something new, and when the loop delivers it."""

    def __init__(self, loop: Loop, lock: threading.Lock, interval_s: float):
        self.loop = loop
        self.lock = lock
        self.interval_s = interval_s
        self._urgent: dict[OutputQueue, None] = {}  # each once, in the order they came
        self._delayed: dict[OutputQueue, None] = {}  # waiting for the end of the interval
        self._woken = False  # the loop was woken and has not run yet
        self._in_interval = False
        self._delivery_s = 0.0  # CPU time of the last delivery at the end of an interval

    def notify(self, queues: "ListOf[OutputQueue]") -> None:
        """On the engine's thread: these have something new."""
        with self.lock:
            for queue in queues:
                self._add(queue)
            if self._woken or not self._urgent:
                return
            self._woken = True
        with suppress(RuntimeError):  # the loop has been closed: no task waits any more
            self.loop.call_soon_threadsafe(self.deliver)

    def _add(self, queue: "OutputQueue") -> None:
        finished = queue.finished
        if self._in_interval and (finished or not (queue.begun or queue.whole)):
            self._urgent[queue] = None
        elif not queue.scheduled and (finished or not queue.whole):
            (self._delayed if self._in_interval else self._urgent)[queue] = None
        else:
            return
        queue.scheduled = True

    def deliver(self) -> None:
        """On the loop: deliver what must not be delayed, and begin an interval."""
        with self.lock:
            queues = self._urgent
            self._urgent = {}
            self._woken = False
        for queue in queues:
            queue.deliver()
        if self.interval_s and not self._in_interval:
            self._begin_interval()

    def _begin_interval(self) -> None:
        self._in_interval = True
        interval_s = max(self.interval_s, min(self._delivery_s / MOST_SHARE, self.interval_s * MOST_LONGER))
        self.loop.call_later(interval_s, self._end_interval)

    def _end_interval(self) -> None:
        with self.lock:
            queues = self._delayed
            self._delayed = {}
            self._in_interval = bool(queues)
        self._delivery_s = 0.0
        if queues:
            self._deliver_delayed(iter(queues))

    def _deliver_delayed(self, queues: "Iterator[OutputQueue]") -> None:
        """Deliver to some, and to the others when the loop has done what came meanwhile."""
        some = list(islice(queues, AT_ONCE))
        began = time.thread_time()
        for queue in some:
            queue.deliver()
        self._delivery_s += time.thread_time() - began
        if len(some) == AT_ONCE:
            self.loop.call_soon(self._deliver_delayed, queues)
        else:
            self._begin_interval()


class OutputQueue:
    """Output that waits for a request's reader. The engine's thread adds and the loop takes, under one lock."""

    def __init__(self, dispatcher: Dispatcher, whole: bool = False):
        self.dispatcher = dispatcher
        self.whole = whole  # the reader wants nothing before the end
        self.request: Request | None = None  # set by the engine's thread
        self.scheduled = False  # the loop is going to deliver
        self.begun = False  # the reader has got something
        self._empty = False  # nothing can have come since the last delivery, unless `scheduled`
        self._on_chunk: OnChunk | None = None  # the reader's callback while it reads
        self._reading: asyncio.Future[bool] | None = None  # the reader that waits for more

    @property
    def finished(self) -> bool:
        return self.request is not None and self.request.finished

    async def next(self) -> Chunk:
        """The next chunk, as soon as there is one; ends the iteration when none will come."""
        chunks: list[Chunk] = []

        def keep(chunk: Chunk) -> bool:
            chunks.append(chunk)
            return False

        if await self.read(keep):
            return chunks[0]
        raise StopAsyncIteration

    async def read(self, on_chunk: OnChunk) -> bool:
        """Call `on_chunk` with every chunk until it returns False (then True: there may be more) or none will come."""
        self._on_chunk = on_chunk
        self._reading = self.dispatcher.loop.create_future()
        try:
            self.deliver()
            return await self._reading
        finally:
            self._on_chunk = self._reading = None

    def deliver(self) -> None:
        """On the loop: pass what is new to the reader."""
        if self._on_chunk is None or self._reading is None or self._reading.done():
            return None
        try:
            while self.scheduled or not self._empty:
                chunk, finished = self._pop()
                if finished:
                    return self._reading.set_result(False)
                if chunk and not self._on_chunk(chunk):
                    return self._reading.set_result(True)
        except Exception as error:  # the request's, or the callback's
            self._reading.set_exception(error)
        return None

    def _pop(self) -> tuple[Chunk | None, bool]:
        """Take the new output; True beside it when there will be no more."""
        with self.dispatcher.lock:
            self.scheduled = False
            assert self.request
            chunk = self.request.next_chunk()
            if chunk is None:
                self._empty = not self.request.finished
                return None, self.request.finished
            self.begun = True
            self._empty = self.request.has_one_choice and chunk.finish_reason is None
            return chunk, False


def settle(outcomes: ListOf[Outcome]) -> None:
    """Give them to the tasks that wait for them, in the loop of these."""
    for future, result, error in outcomes:
        if future.done():
            continue  # cancelled meanwhile
        if error:
            future.set_exception(error)
        else:
            future.set_result(result)


def join_at_exit(thread: threading.Thread, stop: Callable[[], None]) -> Callable[[], None]:
    """When the process ends, have a thread stop and wait for that; what is returned takes this back.

    A thread that came back from native code later than the interpreter would abort the process.
    """

    def end() -> None:
        if thread.is_alive():  # a forked process has no such thread, and `stop` may wait for a lock that it held
            stop()
            thread.join()

    atexit.register(end)
    return lambda: atexit.unregister(end)
