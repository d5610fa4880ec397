"""How what a step brought finds its readers, in an event loop that has other things to do.

After a step the loop is called once for all streams, and not at all while it has not seen to the last call: a loop
that is busy elsewhere costs nothing, and a reader that lags finds everything it missed as one chunk. A reader that
wants the whole reply is called once, at its end. Waking a task for every token may cost more than what it does with
it, so readers are fed by the call itself.

On a machine whose cores all compute, each call pushes a kernel off its core and finds the caches cold. With a pause
between two looks, what comes meanwhile is handed over as one chunk, and the engine need not even call; only the first
chunk of a stream and its last are never kept waiting.
"""

import asyncio
import threading
from collections.abc import Callable
from collections.abc import Sequence as ListOf

from tahr.library.outputs import Chunk, Request

Loop = asyncio.AbstractEventLoop
Take = Callable[[Chunk], bool]  # whether it wants more at once


class Rounds:
    """Which mailboxes of one loop have something in them, and when it looks into them."""

    def __init__(self, loop: Loop, lock: threading.Lock, pause_s: float):
        self.loop, self.lock, self.pause_s = loop, lock, pause_s
        self._at_once: dict[Mailbox, None] = {}  # each once, in the order they came
        self._in_time: dict[Mailbox, None] = {}  # when the pause is over
        self._called = False  # and the loop has not come yet
        self._resting = False

    def call(self, boxes: "ListOf[Mailbox]") -> bool:
        """On the engine's thread: something has come for these. False if the loop is closed."""
        if self.loop.is_closed():
            return False
        with self.lock:
            for box in boxes:
                self._note(box)
            if self._called or not self._at_once:
                return True
            self._called = True
        try:
            self.loop.call_soon_threadsafe(self.look)
        except RuntimeError:  # closed just now
            return False
        return True

    def _note(self, box: "Mailbox") -> None:
        if self._resting and (box.over or not (box.begun or box.whole)):
            self._at_once[box] = None
        elif not box.called and (box.over or not box.whole):
            (self._in_time if self._resting else self._at_once)[box] = None
        else:
            return
        box.called = True

    def look(self) -> None:
        """On the loop: hand over what cannot wait, and then rest."""
        with self.lock:
            boxes, self._at_once, self._called = self._at_once, {}, False
        for box in boxes:
            box.look()
        if self.pause_s and not self._resting:
            self._rest()

    def _rest(self) -> None:
        self._resting = True
        self.loop.call_later(self.pause_s, self._wake)

    def _wake(self) -> None:
        with self.lock:
            boxes, self._in_time = self._in_time, {}
            self._resting = bool(boxes)
        for box in boxes:
            box.look()
        if boxes:
            self._rest()


class Mailbox:
    """What a request has for its reader. The engine's thread puts in and the loop takes out, under one lock."""

    def __init__(self, rounds: Rounds, whole: bool = False):
        self.rounds = rounds
        self.whole = whole  # the reader is not interested before the end
        self.request: Request | None = None  # set by the engine's thread
        self.called = False  # the loop is going to look
        self.begun = False  # the reader has got something
        self._empty = False  # nothing can have come since the last look, unless the loop is called
        self._take: Take | None = None  # a reader that is being fed
        self._fed: asyncio.Future[bool] | None = None  # what it waits for

    @property
    def over(self) -> bool:
        return self.request is not None and self.request.over

    async def next(self) -> Chunk:
        """The next chunk, as soon as there is one; ends the iteration when none will come."""
        chunks: list[Chunk] = []

        def keep(chunk: Chunk) -> bool:
            chunks.append(chunk)
            return False

        if await self.feed(keep):
            return chunks[0]
        raise StopAsyncIteration

    async def feed(self, take: Take) -> bool:
        """Give chunks to `take` as they come, until it wants no more; False when none will come."""
        self._take, self._fed = take, self.rounds.loop.create_future()
        try:
            self.look()
            return await self._fed
        finally:
            self._take = self._fed = None

    def look(self) -> None:
        """On the loop: see what has come, and hand it over."""
        if self._take is None or self._fed is None or self._fed.done():
            return None
        try:
            while self.called or not self._empty:
                chunk, over = self._get()
                if over:
                    return self._fed.set_result(False)
                if chunk and not self._take(chunk):
                    return self._fed.set_result(True)
        except Exception as error:  # the request's, or of what was done with the chunk
            self._fed.set_exception(error)
        return None

    def _get(self) -> tuple[Chunk | None, bool]:
        """What is new, and whether that is all there will ever be."""
        with self.rounds.lock:
            self.called = False
            assert self.request
            chunk = self.request.take()
            if chunk is None:
                self._empty = not self.request.over
                return None, self.request.over
            self.begun = True
            self._empty = self.request.is_single and chunk.finish_reason is None
            return chunk, False
