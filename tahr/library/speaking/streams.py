"""Texts that an engine's thread speaks for tasks of event loops, many at once."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

from tahr.errors import GenerateError, TahrError
from tahr.library.speaking.job import SILENCE, FramePiece, SpeakJob
from tahr.library.speaking.planning import SpeakPlan
from tahr.library.speaking.sound import SoundMaker
from tahr.library.speaking.speech import Speaker, note_end, parts_of, planned
from tahr.speech.codec.tensors import Floats
from tahr.speech.speaking.options import SpeakOptions

Post = Callable[[Callable[[], None]], bool]  # runs something on the engine's thread


class SpeechStream:
    """The sound of one text, piece by piece. One that is closed leaves the engine before the next step.

    Frames wait until their sound is asked for: they are small, and the engine goes on.
    """

    def __init__(self, streams: "SpeechStreams", job: SpeakJob):
        self.job = job
        self._streams = streams
        self._maker = SoundMaker(parts_of(streams.llm).codec)
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[FramePiece] = deque()
        self._is_there = asyncio.Event()
        self._error: Exception | None = None
        self._has_ended = False

    @property
    def sample_rate(self) -> int:
        return self._maker.sample_rate

    @property
    def n_frames(self) -> int:
        """Frames that were drawn so far."""
        return self.job.n_frames

    @property
    def reason(self) -> str:
        """Why it ended: see `Speech.reason`."""
        return self.job.reason

    def __aiter__(self) -> "SpeechStream":
        return self

    async def __anext__(self) -> Floats:
        while not self._arrived:
            if self._error:
                raise self._error
            if self._has_ended:
                raise StopAsyncIteration
            self._is_there.clear()
            await self._is_there.wait()
        piece = self._arrived.popleft()
        samples, is_silent = await asyncio.to_thread(self._maker.make, piece)
        if is_silent:
            self._streams.stop_part(self, piece.part)
        return samples

    def close(self) -> None:
        """Stop, and free what it holds."""
        if not self._has_ended:
            self._has_ended = True
            self._streams.leave(self)

    # ---- the engine's thread ----------------------------------------------------------------------------------

    def deliver(self, pieces: tuple[FramePiece, ...], is_last: bool, error: Exception | None = None) -> None:
        with suppress(RuntimeError):  # the loop has been closed: no task waits any more
            self._loop.call_soon_threadsafe(self._arrive, pieces, is_last, error)

    def _arrive(self, pieces: tuple[FramePiece, ...], is_last: bool, error: Exception | None) -> None:
        self._arrived += pieces
        self._has_ended = self._has_ended or is_last
        self._error = error
        self._is_there.set()


class SpeechStreams:
    """All texts that one engine speaks. Its methods run on the engine's thread, but `stream`, `leave` and
    `stop_part`."""

    def __init__(self, llm: Speaker, post: Post):
        self.llm = llm
        self._post = post
        self._running: dict[SpeechStream, SpeakJob] = {}

    def stream(self, plan: SpeakPlan, chunk_frames: int, salt: str) -> SpeechStream:
        """A stream that is not yet opened."""
        return SpeechStream(self, SpeakJob(self.llm.engine, plan, chunk_frames, salt))

    def leave(self, stream: SpeechStream) -> None:
        """Nobody wants the rest."""
        self._post(lambda: self._end(stream))

    def stop_part(self, stream: SpeechStream, part: int) -> None:
        """Nothing is heard of a part any more."""
        self._post(lambda: self._go_on(stream, lambda: stream.job.stop_part(part, SILENCE)))

    def open(self, stream: SpeechStream) -> None:
        """Queue a text; one that could never be spoken is refused here."""
        stream.job.start()
        self._running[stream] = stream.job

    def advance(self) -> None:
        """Go on with what a step brought."""
        for stream, job in list(self._running.items()):
            self._go_on(stream, job.advance)

    def fail_all(self, error: Exception) -> None:
        """The engine cannot go on."""
        for stream in list(self._running):
            self._fail(stream, error)

    @property
    def busy(self) -> bool:
        return bool(self._running)

    # ---- one stream -------------------------------------------------------------------------------------------

    def _go_on(self, stream: SpeechStream, work: Callable[[], None]) -> None:
        job = self._running.get(stream)
        if job is None:
            return
        try:
            work()
        except Exception as error:
            self._fail(stream, error)
            return
        pieces = tuple(job.pieces)
        job.pieces.clear()
        if job.finished:
            note_end(self.llm.name, job)
            self._end(stream)
        if pieces or job.finished:
            stream.deliver(pieces, job.finished)

    def _fail(self, stream: SpeechStream, error: Exception) -> None:
        if stream in self._running:
            failure = error if isinstance(error, TahrError) else fault_of(error)
            self._end(stream)
            stream.deliver((), True, failure)

    def _end(self, stream: SpeechStream) -> None:
        job = self._running.pop(stream, None)
        if job:
            job.close()


class Speaks:
    """The way of an `AsyncLLM` to speak."""

    llm: Any
    _post: Post
    _call: Callable[[Callable[[], object]], Awaitable[object]]

    @cached_property
    def _speeches(self) -> SpeechStreams:
        return SpeechStreams(self.llm, self._post)

    async def speak(
        self, text: str, options: SpeakOptions | None = None, vector: Floats | None = None, salt: str = "", **of: Any
    ) -> SpeechStream:
        """Speak a text: a stream of pieces of sound, as `LLM.speak`; closing it stops the work.

        `vector` is the voice that `vector_of` makes of a recording.
        """
        chosen = options or SpeakOptions(**of)
        plan = await asyncio.to_thread(planned, self.llm, text, chosen, vector)
        stream = self._speeches.stream(plan, chosen.chunk_frames, salt)
        try:
            await self._call(lambda: self._speeches.open(stream))
        except BaseException:
            stream.close()
            raise
        return stream


def fault_of(error: Exception) -> GenerateError:
    failure = GenerateError(f"A text could not be spoken: {error!r}. Please report this.")
    failure.__cause__ = error
    return failure
