"""Threads for work on texts that would hold up the event loop: tokenising, templates, large responses."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

N_THREADS = 2  # the number follows nothing a client can send
# Handing work to a thread costs more than a short text does. After a short text that took long, the next go to threads.
SHORT_BYTES = 2048
SHORT_S = 0.005
N_CAUTIOUS = 100


class TextPool:
    """Runs short work on the loop and everything else on threads."""

    def __init__(self, always_threads: bool = False):
        self._pool = ThreadPoolExecutor(N_THREADS, thread_name_prefix="tahr-text")
        self._always_threads = always_threads
        self._n_cautious = 0  # how many of the next short texts go to a thread all the same

    async def run(self, work: Callable[[], T], n_bytes: int = SHORT_BYTES + 1) -> T:
        """What `work` returns; `n_bytes` is the size of what it reads."""
        if n_bytes > SHORT_BYTES or self._n_cautious or self._always_threads:
            self._n_cautious = max(0, self._n_cautious - 1)
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        began = time.thread_time()
        try:
            return work()
        finally:
            self._n_cautious = N_CAUTIOUS if time.thread_time() - began > SHORT_S else 0

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
