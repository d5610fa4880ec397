"""Threads for work on texts that would hold up the event loop: tokenising, templates, large responses."""

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tahr.server.http.request import HttpRequest
from tahr.text.tokens.cancellation import Cancellation

T = TypeVar("T")

# A text of megabytes may take minutes, so work waits for work of about its own size only: (most bytes, threads). The
# numbers follow nothing a client can send.
THREADS = ((1 << 16, 2), (1 << 20, 1), (sys.maxsize, 1))
# Handing work to a thread costs more than a short text does. After a short text that took long, the next go to threads.
SHORT_BYTES = 2048
SHORT_S = 0.005
N_CAUTIOUS = 100


class TextPool:
    """Runs short work on the loop and everything else on threads."""

    def __init__(self, always_threads: bool = False):
        self._pools = [(most, ThreadPoolExecutor(n, thread_name_prefix="tahr-text")) for most, n in THREADS]
        self._always_threads = always_threads
        self._n_cautious = 0  # next short texts that go to a thread all the same

    async def run(self, work: Callable[[], T], n_bytes: int = SHORT_BYTES + 1) -> T:
        """Run `work` on the pool; `n_bytes` is the size of its input."""
        return self._run_here(work) if self._is_short(n_bytes) else await self._run_there(work, n_bytes)

    async def run_for(self, request: HttpRequest, work: Callable[[], T], n_bytes: int) -> T:
        """Run `work` for a request that nothing can cancel yet: when its client leaves, the work ends."""
        if self._is_short(n_bytes):
            return self._run_here(work)
        with request.cancellable():
            return await self._run_there(work, n_bytes)

    def _is_short(self, n_bytes: int) -> bool:
        return n_bytes <= SHORT_BYTES and not self._n_cautious and not self._always_threads

    async def _run_there(self, work: Callable[[], T], n_bytes: int) -> T:
        self._n_cautious = max(0, self._n_cautious - 1)
        pool = next(pool for most, pool in self._pools if n_bytes <= most)
        cancellation = Cancellation()
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, cancellation.run, work)
        except asyncio.CancelledError:
            cancellation.cancel()  # the thread is free when the work comes to its next part
            raise

    def _run_here(self, work: Callable[[], T]) -> T:
        began = time.thread_time()
        try:
            return work()
        finally:
            self._n_cautious = N_CAUTIOUS if time.thread_time() - began > SHORT_S else 0

    def close(self) -> None:
        for _, pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
