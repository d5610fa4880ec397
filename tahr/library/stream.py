"""The stream of one request of an `AsyncLLM`."""

import asyncio
from typing import Protocol

from tahr.generation.delivery import OnChunk, OutputQueue
from tahr.generation.outputs import Chunk, Completion


class Owner(Protocol):
    """The `AsyncLLM` of a stream, which tells the engine's thread."""

    def _release(self, queue: OutputQueue) -> None: ...
    def _end_early(self, queue: OutputQueue) -> None: ...


class Stream:
    """The chunks of one request, as they come. A stream that is closed or garbage-collected aborts its request."""

    def __init__(self, llm: Owner, queue: OutputQueue):
        assert queue.request
        self._llm = llm
        self._queue = queue
        self.request = queue.request  # only the engine's thread changes it; others may look
        self.id = queue.request.id

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Chunk:
        return await self._queue.next()

    async def read(self, on_chunk: OnChunk) -> bool:
        """Call `on_chunk` with the chunks as they come, without waking a task for each, until it returns False.

        Then this returns True: there may be more. It returns False when none are left.
        """
        return await self._queue.read(on_chunk)

    async def completion(self) -> Completion:
        """Wait for the end; the first choice, with the others beside it if there are more."""
        try:
            async for _ in self:
                pass
        except asyncio.CancelledError:
            self.close()
            raise
        return self.request.completion()

    def end_early(self) -> None:
        """End the request with what it has: its last chunks come, and their finish reason is `abort`."""
        self._llm._end_early(self._queue)

    def close(self) -> None:
        """Abort the request, if it still runs; its memory is free before the next step."""
        self._llm._release(self._queue)

    def __del__(self) -> None:
        self.close()
