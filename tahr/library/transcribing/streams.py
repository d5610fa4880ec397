"""Recordings that an engine's thread writes down for tasks of event loops, many at once."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock

from tahr.errors import GenerateError, TahrError
from tahr.library.transcribing.job import Found, TranscriptionJob
from tahr.library.transcribing.transcription import Transcriber, job_of, recording_of
from tahr.speech.audio.limits import Samples
from tahr.speech.audio.process import Buffer, Decoding
from tahr.speech.audio.windows import SoundReader
from tahr.speech.decoding.options import TranscribeOptions
from tahr.speech.decoding.results import Heard, SpokenSegment

MOST_AT_ONCE = 16  # recordings, each with a process that decodes it; the others wait
MOST_SOUND_S = 4 * 3600  # limit on a recording
Post = Callable[[Callable[[], None]], bool]  # runs something on the engine's thread


class DecodedFile:
    """The blocks of a file, whose process begins with the first of them. Any thread may close it."""

    def __init__(self, data: Buffer, max_s: int):
        self._data = data
        self._max_s = max_s
        self._lock = Lock()
        self._process: Decoding | None = None
        self._is_closed = False

    def __iter__(self) -> Iterator[Samples]:
        with self._lock:
            if self._is_closed:
                return
            self._process = Decoding(self._data, self._max_s)
        yield from self._process.blocks()

    def stop(self) -> None:
        """End the process, also while a thread waits for it; this waits for nothing."""
        with self._lock:
            self._is_closed = True
        if self._process:
            self._process.stop()

    def close(self) -> None:
        """End it, and wait until it has."""
        self.stop()
        if self._process:
            self._process.close()


class TranscriptStream:
    """The segments of one recording, as they are found. One that is closed leaves the engine before the next step."""

    def __init__(self, streams: "TranscriptStreams", data: Buffer, options: TranscribeOptions, max_s: int):
        self.heard: Heard | None = None  # known before the first segment
        self.options = options
        self.job: TranscriptionJob | None = None  # only the engine's thread changes it
        self.sound = DecodedFile(data, max_s)
        self.reader: SoundReader = recording_of(streams.llm.model_config, self.sound, options)
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[SpokenSegment] = deque()
        self._is_there = asyncio.Event()
        self._error: Exception | None = None
        self._has_ended = False

    @property
    def seconds(self) -> float:
        """How much of the recording has been read."""
        return self.reader.seconds

    @property
    def n_windows(self) -> int:
        """Windows that went through the model so far."""
        return self.job.n_windows if self.job else 0

    @property
    def n_fallbacks(self) -> int:
        """Texts so far that were written again at a higher temperature."""
        return self.job.n_fallbacks if self.job else 0

    def __aiter__(self) -> "TranscriptStream":
        return self

    async def __anext__(self) -> SpokenSegment:
        while not self._arrived:
            if self._error:
                raise self._error
            if self._has_ended:
                raise StopAsyncIteration
            self._is_there.clear()
            await self._is_there.wait()
        return self._arrived.popleft()

    def close(self) -> None:
        """Stop, and free what it holds."""
        if not self._has_ended:
            self._has_ended = True
            self._streams.leave(self)

    # ---- the engine's thread ----------------------------------------------------------------------------------

    def deliver(self, found: Sequence[Found], is_last: bool, error: Exception | None = None) -> None:
        with suppress(RuntimeError):  # the loop has been closed: no task waits any more
            self._loop.call_soon_threadsafe(self._arrive, found, is_last, error)

    def _arrive(self, found: Sequence[Found], is_last: bool, error: Exception | None) -> None:
        for each in found:
            if isinstance(each, SpokenSegment):
                self._arrived.append(each)
            else:
                self.heard = each
        self._has_ended = self._has_ended or is_last
        self._error = error
        self._is_there.set()


class TranscriptStreams:
    """All recordings of one engine. Its methods run on the engine's thread, but `stream`, `leave` and `close`."""

    def __init__(self, llm: Transcriber, n_sequences: int, post: Post):
        self.llm = llm
        self._post = post
        self._n_sequences = n_sequences  # most that run at once
        self._running: dict[TranscriptStream, TranscriptionJob] = {}
        self._waiting: dict[TranscriptStream, TranscriptionJob] = {}
        self._reading: ThreadPoolExecutor | None = None

    def stream(self, data: Buffer, options: TranscribeOptions, max_s: int) -> TranscriptStream:
        """A stream that is not yet opened."""
        return TranscriptStream(self, data, options, max_s)

    def leave(self, stream: TranscriptStream) -> None:
        """Nobody wants the rest."""
        if not self._post(lambda: self._end(stream)):
            stream.sound.stop()

    def close(self) -> None:
        """Wait for no thread."""
        if self._reading:
            self._reading.shutdown(wait=False, cancel_futures=True)

    def open(self, stream: TranscriptStream, salt: str) -> None:
        """Queue a recording; what is wrong with its options is raised here."""
        stream.job = self._waiting[stream] = job_of(self.llm, stream.options, salt)
        self._start()

    def advance(self) -> None:
        """Go on with what a step brought."""
        for stream in list(self._running):
            self._go_on(stream, stream.job.advance if stream.job else None)

    def fail_all(self, error: Exception) -> None:
        """The engine cannot go on."""
        for stream in [*self._running, *self._waiting]:
            self._fail(stream, error)

    @property
    def busy(self) -> bool:
        return bool(self._running)

    # ---- one stream -------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Begin those that wait, as many as there is room for."""
        while self._waiting:
            stream, job = next(iter(self._waiting.items()))
            n_texts = max(stream.options.beams, stream.options.best_of)
            if self._running and len(self._running) >= min(MOST_AT_ONCE, self._n_sequences // n_texts):
                return
            del self._waiting[stream]
            self._running[stream] = job
            self._go_on(stream, job.start)

    def _go_on(self, stream: TranscriptStream, work: Callable[[], None] | None) -> None:
        """Do some of a job's work, and pass on what it found."""
        job = self._running.get(stream)
        if job is None or work is None:
            return
        had_work = job.host_work is not None
        try:
            work()
        except Exception as error:
            self._fail(stream, error)
            return
        found = tuple(job.found)
        job.found.clear()
        if job.finished:
            self._end(stream)
        if found or job.finished:
            stream.deliver(found, job.finished)
        if job.host_work is not None and not had_work:
            self._work_apart(stream, job.host_work)

    def _work_apart(self, stream: TranscriptStream, host_work: Callable[[SoundReader], object]) -> None:
        """Read a window, or compute, on another thread."""
        if self._reading is None:
            self._reading = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="tahr-sound")

        def work() -> None:
            try:
                result = host_work(stream.reader)
            except Exception as error:
                failure = error
                self._post(lambda: self._fail(stream, failure))
            else:
                self._post(lambda: self._take(stream, result))

        self._reading.submit(work)

    def _take(self, stream: TranscriptStream, result: object) -> None:
        job = self._running.get(stream)
        if job:
            job.host_work = None
            self._go_on(stream, lambda: job.go_on(result))

    def _fail(self, stream: TranscriptStream, error: Exception) -> None:
        if stream in self._running or stream in self._waiting:
            failure = error if isinstance(error, TahrError) else fault_of(error)
            self._end(stream)
            stream.deliver((), True, failure)

    def _end(self, stream: TranscriptStream) -> None:
        job = self._running.pop(stream, None) or self._waiting.pop(stream, None)
        if job:
            job.close()
            stream.sound.stop()
            if self._reading:
                self._reading.submit(stream.sound.close)
        self._start()


def fault_of(error: Exception) -> GenerateError:
    failure = GenerateError(f"A recording could not be written down: {error!r}. Please report this.")
    failure.__cause__ = error
    return failure
