"""`AsyncLLM`: an engine on a thread of its own, for many requests of an event loop at once.

The loop's side only posts commands and takes chunks; the thread runs the commands between two steps, and blocks when
there is nothing to do. `delivery` says how the chunks of a step reach their readers.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from collections.abc import Sequence as ListOf
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tahr.backends.api import Floats
from tahr.collector import rare_collections
from tahr.config import EngineConfig, LoraChoice, SamplingParams
from tahr.engine import sleeping
from tahr.engine.adapters.registry import check_name
from tahr.engine.sequences.adapter_stack import LoadedAdapter
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.stats import StatsSnapshot
from tahr.errors import ConfigError, GenerateError, TahrError
from tahr.generation.delivery import Dispatcher, Loop, Outcome, OutputQueue, join_at_exit, settle
from tahr.generation.outputs import Chunk, Completion, Request
from tahr.grammar.state import GrammarState
from tahr.library.embeddings import EmbeddingJob, EmbeddingOptions, Item, Pooling
from tahr.library.inputs.arguments import Message, ModelName, Prompt, one_prompt, short
from tahr.library.inputs.image_inputs import Images
from tahr.library.inputs.rerank import RankedDocument, plan_pairs, ranked
from tahr.library.llm import LLM, Texts, text_request
from tahr.library.score import SCORING, Score, ScoringPrompt
from tahr.library.speaking.streams import Speaks
from tahr.library.stream import Stream
from tahr.library.structured.compiling import Compiling
from tahr.library.structured.response_format import response_format_of
from tahr.library.transcribing.streams import MOST_SOUND_S, TranscriptStream, TranscriptStreams
from tahr.speech.audio.process import Buffer
from tahr.speech.decoding.options import TranscribeOptions

IdleWork = Callable[[Callable[[float], bool]], bool]  # see `AsyncLLM.when_idle`
T = TypeVar("T")
CLOSED = "The engine is closed, or this process was forked from its own: make a new AsyncLLM."
log = logging.getLogger("tahr.engine")


class AsyncLLM(Speaks):
    """A loaded model for `async` code. Use it in `async with`, or call `close`."""

    def __init__(
        self,
        model: ModelName | None = None,
        *,
        config: EngineConfig | None = None,
        quantization: str | None = None,
        progress: Any = None,
        llm: LLM | None = None,  # a loaded one, which nothing else may use from then on
        stream_interval_s: float = 0.0,  # between two deliveries to readers; what comes meanwhile is one chunk
        **settings: Any,  # the fields of EngineConfig, where there is no config
    ):
        self.llm: LLM = llm or LLM(model, config=config, quantization=quantization, progress=progress, **settings)
        self._queues: dict[int, OutputQueue] = {}  # queues by request; only the engine's thread touches them
        self._lock = threading.Lock()  # guards the parts of chunks
        self._interval_s = stream_interval_s
        self._dispatchers: dict[Loop, Dispatcher] = {}  # dispatchers of closed loops go after the next step
        self._commands: list[Callable[[], None]] = []
        self._jobs: dict[asyncio.Future[Floats], EmbeddingJob] = {}  # only the engine's thread touches them
        self._outcomes: dict[Loop, list[Outcome]] = {}  # results of commands; only the engine's thread touches them
        self._transcripts = TranscriptStreams(self.llm, self.llm.engine.scheduler.limits.n_seqs, self._post)
        self._wake = threading.Condition()
        self._closing = False
        self._idle_work: IdleWork | None = None  # only the engine's thread touches it
        self.asleep = False  # only the engine's thread changes it
        self._compiling = Compiling(self.llm.grammars)
        self._thread = threading.Thread(target=self._work, name="tahr-engine", daemon=True)
        self._thread.start()
        self._forget_exit = join_at_exit(self._thread, self._stop)

    # ---- requests ---------------------------------------------------------------------------------------------

    async def submit(self, prompt: Prompt, params: SamplingParams | None = None, *, whole: bool = False) -> Stream:
        """Queue a prompt; what is wrong with it is raised here, before anything is computed.

        A stream that is wanted `whole` gives each choice as one chunk, when all are finished.
        """
        request = text_request(one_prompt(prompt), params)
        is_text = isinstance(request.prompt, str)  # a text may take long to encode
        resolved = await asyncio.to_thread(self.llm.resolve, request) if is_text else self.llm.resolve(request)
        return await self.submit_resolved(resolved, whole)

    async def submit_chat(
        self, messages: str | ListOf[Message], params: SamplingParams | None = None, **options: Any
    ) -> Stream:
        """Queue a conversation, with the options of `LLM.chat`."""
        return await self.submit_resolved(await asyncio.to_thread(self.llm.prepare_chat, messages, params, **options))

    async def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[Chunk]:
        """Continue a prompt piece by piece; leaving the loop stops the request."""
        stream = await self.submit(prompt, params)
        try:
            async for chunk in stream:
                yield chunk
        finally:
            stream.close()

    async def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, response_format: Any = None
    ) -> Completion:
        """Continue a prompt; cancelling the task stops the request."""
        form = response_format_of(response_format)
        done = await (await self.submit(prompt, form.over(params) if form else params, whole=True)).completion()
        return form.parsed(done) if form else done

    async def chat(
        self,
        messages: str | ListOf[Message],
        params: SamplingParams | None = None,
        *,
        response_format: Any = None,
        **options: Any,
    ) -> Completion:
        """Answer a conversation, with the options of `LLM.chat`; cancelling the task stops the request."""
        form = response_format_of(response_format)
        stream = await self.submit_chat(messages, form.over(params) if form else params, **options)
        return form.parsed(await stream.completion()) if form else await stream.completion()

    async def add_lora(
        self, name: str, path: str | Path, scale: float = 1.0, *, replaces: bool = False
    ) -> LoadedAdapter:
        """Load an adapter while requests go on: it is read on a thread, and put in place between two steps.

        With `replaces`, one of the same name goes in the same moment, and stays if the new one cannot be used.
        """
        adapters = self.llm.engine.adapters
        check_name(name)
        prepared = await asyncio.to_thread(adapters.prepare, path)
        return await self._call(lambda: adapters.add(name, prepared, scale, replaces))

    async def remove_lora(self, name: str) -> LoadedAdapter:
        """No new request may use the adapter; those that use it finish first."""
        return await self._call(lambda: self.llm.engine.adapters.remove(name))

    async def embed(
        self,
        texts: Texts | None = None,
        pooling: Pooling | str | None = None,
        *,
        images: Images = None,
        normalize: bool = True,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        truncate: int | None = None,
        lora: str | ListOf[LoraChoice] = (),
    ) -> Floats:
        """Texts and images as vectors, as `LLM.embed`; cancelling the task stops it.

        Replies go on meanwhile: the engine's steps take turns.
        """
        prepared = asyncio.to_thread(self.llm.embedding_items, texts, images, prompt_name, truncate)
        items, single = await prepared
        vectors = await self.vectors(items, EmbeddingOptions(pooling, normalize, dimensions), lora)
        row: Floats = vectors[0] if single else vectors
        return row

    async def vectors(
        self,
        texts: ListOf[Item],
        options: EmbeddingOptions,
        lora: str | ListOf[LoraChoice] = (),
        background: bool = False,
    ) -> Floats:
        """Compute one vector for each text, given as tokens, and for each image."""
        future: asyncio.Future[Floats] = asyncio.get_running_loop().create_future()
        try:
            await self._call(lambda: self._open_job(future, texts, options, lora, background))
            return await future
        except asyncio.CancelledError:
            self._post(lambda: self._abort_job(future))
            raise

    async def transcribe(
        self,
        data: Buffer,
        options: TranscribeOptions | None = None,
        max_s: int = MOST_SOUND_S,
        salt: str = "",
        **of: Any,
    ) -> TranscriptStream:
        """Write down what is said in a file: a stream of segments, as `LLM.transcribe`; closing it stops the work.

        A process of its own decodes the file. Windows of all recordings, and their texts, share the engine's steps.
        """
        stream = self._transcripts.stream(data, options or TranscribeOptions(**of), max_s)
        try:
            await self._call(lambda: self._transcripts.open(stream, salt))
        except BaseException:
            stream.close()
            raise
        return stream

    async def rerank(
        self, query: str, documents: ListOf[str], *, top_n: int | None = None, truncate: int | None = None
    ) -> list[RankedDocument]:
        """The documents by how well they answer the query, as `LLM.rerank`."""
        plan = await asyncio.to_thread(plan_pairs, self.llm.inputs, [query], documents, truncate)
        return ranked(plan.scores(await self.vectors(plan.texts, EmbeddingOptions())), top_n)

    async def score(self, prompt: str, continuation: str) -> Score:
        """How likely a continuation of the prompt is."""
        joined = await asyncio.to_thread(ScoringPrompt.join, self.llm.tokenizer, prompt, continuation)
        return joined.score((await self.generate(joined.tokens, SCORING)).prompt_logprobs)

    async def abort(self, request: Stream | int) -> None:
        """Stop a request, by its stream or its id; its reader gets a last chunk that says so.

        Nothing happens to a request that is finished.
        """
        request_id = request.id if isinstance(request, Stream) else request
        if type(request_id) is not int:
            raise ConfigError(f"abort is given {short(request)}, but it needs a stream or the id of one.")
        await self._call(lambda: self._abort(request_id), wakes=False)

    async def sleep(self) -> int:
        """Give memory back until the next request: keys and values, and on a GPU the weights, which wait in the host's
        memory. Returned are the bytes that are free now; what works is not put to sleep."""
        return await self._call(self._sleep, wakes=False)

    async def wake(self) -> None:
        """Be ready again; requests do so by themselves."""
        await self._call(lambda: None)

    def when_idle(self, work: IdleWork) -> None:
        """Call `work` on the engine's thread whenever there is nothing to do, from now on, until it returns False.

        It is given a function that waits for something to do, so many seconds at most, and says whether there is
        something: then it must return.
        """
        self._post(lambda: setattr(self, "_idle_work", work))

    def stats(self) -> StatsSnapshot:
        """The engine's counters at this moment."""
        return self.llm.stats()

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs and takes requests."""
        return self._thread.is_alive() and not self._closing

    @property
    def cpu_s(self) -> float:
        """CPU time of the engine's thread and its executor's processes so far; of this process on systems without
        clocks of threads."""
        elsewhere = self.llm.engine.executor.cpu_s
        thread = self._thread.ident
        if thread is None or not self._thread.is_alive() or not hasattr(time, "pthread_getcpuclockid"):
            return elsewhere + time.process_time()
        return elsewhere + time.clock_gettime(time.pthread_getcpuclockid(thread))

    async def close(self) -> None:
        """Stop everything, and wait for the thread to end. Readers get their last chunks."""
        self._stop()
        await asyncio.to_thread(self._thread.join)
        self._forget_exit()
        self._transcripts.close()
        self.llm.grammars.close()
        await asyncio.to_thread(self.llm.engine.close)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("An AsyncLLM cannot be pickled: make one in each process, from the same name.")

    def _stop(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()

    # ---- the loop's side --------------------------------------------------------------------------------------

    async def submit_resolved(self, resolved: ResolvedRequest, whole: bool = False) -> Stream:
        """Queue what was resolved before; see `submit`."""
        queue = OutputQueue(self._dispatcher_of(asyncio.get_running_loop()), whole)
        grammar = await self._grammar_state(resolved.params) if resolved.params.grammar is not None else None
        try:
            await self._call(lambda: self._open(queue, resolved, grammar))
        except asyncio.CancelledError:
            self._release(queue)
            raise
        return Stream(self, queue)

    async def _grammar_state(self, params: SamplingParams) -> GrammarState | None:
        if not self.alive:
            raise GenerateError(CLOSED)
        return await self._compiling.state(params)

    def _dispatcher_of(self, loop: Loop) -> Dispatcher:
        with self._lock:
            if loop not in self._dispatchers:
                self._dispatchers[loop] = Dispatcher(loop, self._lock, self._interval_s)
            return self._dispatchers[loop]

    def _call(self, work: Callable[[], T], wakes: bool = True) -> "asyncio.Future[T]":
        """Run something on the engine's thread, between two steps; an engine that sleeps is woken before."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def command() -> None:
            if future.cancelled():
                return
            outcomes = self._outcomes.setdefault(loop, [])
            try:
                if wakes and self.asleep:
                    self._wake_up()
                outcomes.append((future, work(), None))
            except Exception as error:
                outcomes.append((future, None, error))

        if not self._post(command):
            raise GenerateError(CLOSED)
        return future

    def _post(self, command: Callable[[], None]) -> bool:
        """Whether it will run: a closed engine takes no commands."""
        with self._wake:
            alive = self.alive  # not in a forked process, which has none of its parent's threads
            if alive:
                self._commands.append(command)
                self._wake.notify()
            return alive

    def _release(self, queue: OutputQueue) -> None:
        """The reader has left: abort the request if it still runs."""
        if not queue.finished:
            self._post(lambda: self._abort(queue.request.id) if queue.request else None)

    def _end_early(self, queue: OutputQueue) -> None:
        """End a request with what it has, between two steps."""
        self._post(lambda: self._finish_early(queue.request) if queue.request else None)

    # ---- the engine's thread ----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Commands, a step, notifications; again, until closed."""
        with rare_collections():
            while self._run_commands():
                try:
                    self._step()
                except Exception as error:  # an engine contains what requests do wrong, so this is a fault of its own
                    self._fail_all(error)
        for request_id in list(self._queues):
            self._abort(request_id)
        self._fail_jobs(GenerateError("The engine is closed: make a new AsyncLLM."))

    def _run_commands(self) -> bool:
        """Wait until there is something to do; False when closing."""
        if self._idle_work and not self._has_work() and not self._idle_work(self._has_work_within):
            self._idle_work = None
        with self._wake:
            while not self._has_work():
                self._wake.wait()
            commands = self._commands
            self._commands = []
            closing = self._closing
        for command in commands:
            try:
                command()
            except Exception:  # one request's error; the thread and the other requests go on
                log.exception("A command of the engine's thread failed; requests go on.")
        self._settle()
        return not closing

    def _has_work(self) -> bool:
        return bool(self._commands or self._closing or self.llm.engine.busy)

    def _has_work_within(self, seconds: float) -> bool:
        with self._wake:
            return self._wake.wait_for(self._has_work, seconds)

    def _settle(self) -> None:
        """Give the outcomes of commands and jobs to the tasks that wait for them."""
        outcomes = self._outcomes
        self._outcomes = {}
        for loop, each in outcomes.items():
            with suppress(RuntimeError):  # the loop has been closed: no task waits any more
                loop.call_soon_threadsafe(settle, each)

    def _step(self) -> None:
        events = self.llm.driver.step()
        with self._lock:
            advanced = self.llm.driver.dispatch(events)
            queues = [self._queues[request.id] for request in advanced if request.id in self._queues]
        for request in advanced:
            if request.finished:
                self._remove(request)
        self._notify(queues)
        for loop in list(self._dispatchers):
            if loop.is_closed():
                self._leave(loop)
        self._transcripts.advance()
        self._speeches.advance()
        if self._jobs:
            self._finish_jobs()
            self._settle()

    def _sleep(self) -> int:
        if self.asleep:
            return 0
        n_bytes = sleeping.sleep(self.llm.engine)
        self.asleep = True
        self._idle_work = None
        return n_bytes

    def _wake_up(self) -> None:
        sleeping.wake(self.llm.engine)
        self.asleep = False

    def _open(self, queue: OutputQueue, resolved: ResolvedRequest, grammar: GrammarState | None) -> None:
        queue.request = self.llm.driver.submit(resolved, grammar)
        self._queues[queue.request.id] = queue

    def _abort(self, request_id: int, error: TahrError | None = None) -> None:
        queue = self._queues.get(request_id)
        if queue and queue.request:
            self._remove(queue.request, error)
            self._notify([queue])

    def _finish_early(self, request: Request) -> None:
        queue = self._queues.get(request.id)
        if queue is None:
            return  # the request has ended meanwhile
        with self._lock:
            self.llm.driver.end_early(request)
        self._remove(request)
        self._notify([queue])

    def _fail_all(self, error: Exception) -> None:
        """No reader is left waiting; the next request finds an empty engine."""
        failure = GenerateError(f"The engine failed: {error!r}. Please report this.")
        failure.__cause__ = error
        for request_id in list(self._queues):
            self._abort(request_id, failure)
        self._fail_jobs(failure)

    # ---- embeddings, on the engine's thread -------------------------------------------------------------------

    def _open_job(self, future: "asyncio.Future[Floats]", *job: Any) -> None:
        self._jobs[future] = EmbeddingJob(self.llm.engine, *job)
        self._finish_jobs()  # jobs without texts have nothing to wait for

    def _finish_jobs(self) -> None:
        for future, job in list(self._jobs.items()):
            if job.finished:
                outcome: tuple[Floats | None, TahrError | None]
                try:
                    outcome = job.vectors(), None
                except TahrError as error:
                    outcome = None, error
                del self._jobs[future]  # an error of ours before this line fails all jobs that are here
                self._resolve(future, *outcome)
                job.abort()  # other texts of a failed job may still run

    def _abort_job(self, future: "asyncio.Future[Floats]") -> None:
        job = self._jobs.pop(future, None)
        if job:
            job.abort()

    def _fail_jobs(self, error: TahrError) -> None:
        for future in list(self._jobs):
            self._abort_job(future)
            self._resolve(future, None, error)
        self._transcripts.fail_all(error)
        self._speeches.fail_all(error)
        self._settle()

    def _resolve(self, future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
        self._outcomes.setdefault(future.get_loop(), []).append((future, result, error))

    def _remove(self, request: Request, error: TahrError | None = None) -> None:
        with self._lock:
            self.llm.remove(request, error)
        self._queues.pop(request.id, None)

    def _notify(self, queues: ListOf[OutputQueue]) -> None:
        """Tell the readers of these, in each of their loops (there is one, as a rule)."""
        for dispatcher in {queue.dispatcher for queue in queues}:
            dispatcher.notify([queue for queue in queues if queue.dispatcher is dispatcher])

    def _leave(self, loop: Loop) -> None:
        """A loop has been closed, and its readers with it: abort their requests."""
        with self._lock:
            dispatcher = self._dispatchers.pop(loop)
        for queue in list(self._queues.values()):
            if queue.dispatcher is dispatcher and queue.request:
                self._remove(queue.request)
