"""Which models are in memory: loaded when a request needs them, unloaded within a budget and after a while."""

import asyncio
import ctypes
import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

from tahr.config import SamplingParams
from tahr.errors import ConfigError, ServerError, TahrError
from tahr.generation.outputs import Chunk
from tahr.generation.request import GenerationRequest
from tahr.generation.resolve import RequestFacts, resolve
from tahr.library.embeddings import EmbeddingOptions
from tahr.server.http.errors import HttpError
from tahr.server.http.request import HttpRequest
from tahr.server.models.engine_port import ServedEngine
from tahr.server.models.registry import ModelLoader, ModelRegistry, ModelRest, Phase, ServedModel, UnloadedModel
from tahr.server.models.sleep import ModelSleep
from tahr.speech.audio.wav import a_tenth_of_noise
from tahr.speech.decoding.options import TranscribeOptions
from tahr.speech.speaking.options import SpeakOptions

log = logging.getLogger("tahr.server")
T = TypeVar("T")

COUNTED = ("requests_started", "requests_completed", "requests_failed", "requests_cancelled", "preemptions")


class ModelPool:
    """Loads models one after the other. Only the event loop's thread uses it.

    The sizes of the models in memory, and of the one that is being loaded, are never more than the budget together. To
    make room, the model that was used least recently is unloaded, if possible one without requests. A model that is to
    be unloaded takes no new requests, so that it becomes free however many come; they wait until it is loaded again.
    """

    def __init__(
        self,
        models: ModelRegistry,
        budget_bytes: int | None,
        keep_alive_s: float | None,
        sleep_after_s: float | None = None,
    ):
        self.budget_bytes = budget_bytes
        self.keep_alive_s = keep_alive_s
        self.n_loads = self.n_unloads = self.n_failures = 0
        self.max_bytes = 0  # the most that was ever in memory
        self.past: Counter[str] = Counter()  # counters of engines that are unloaded
        self._models = models
        self.sleep = ModelSleep(models, sleep_after_s, self._left_alone)
        self._turn = asyncio.Lock()  # held by the one load that frees memory
        self._left = asyncio.Event()  # set when a model may have become free
        self._loading_bytes = 0
        self._thread: threading.Thread | None = None

    @property
    def n_host_weight_bytes(self) -> int:
        """Weights in the host's memory of models that run on a GPU."""
        return sum(model.engine.n_host_weight_bytes for model in self._models.loaded)

    @property
    def n_bytes(self) -> int:
        """The memory of all models that are loaded or being loaded."""
        return self._loading_bytes + sum((model.n_bytes or 0) - model.rest.n_bytes for model in self._models.loaded)

    @property
    def n_loaded(self) -> int:
        return len(self._models.loaded)

    @property
    def n_warming(self) -> int:
        return sum(model.engine.warms for model in self._models.loaded)

    @property
    def is_in_native_code(self) -> bool:
        """Whether a thread still loads a model, which cannot be stopped."""
        return self._thread is not None and self._thread.is_alive()

    # ---- requests ---------------------------------------------------------------------------------------------

    def begin_use(self, request: HttpRequest, model: ServedModel) -> bool:
        """The model stays loaded until `end_use`; one that is not, or no longer, is an exception.

        False if the request has waited for the model and holds it already.
        """
        if request in model.users:
            return False
        if not is_ready(model):
            raise UnloadedModel(model)
        self._add_user(request, model)
        return True

    @contextmanager
    def used(self, request: HttpRequest, model: ServedModel) -> Iterator[None]:
        """Count as a user of the model while inside."""
        is_new = self.begin_use(request, model)
        try:
            yield
        finally:
            if is_new:
                self.end_use(request, model)

    @asynccontextmanager
    async def loaded(self, request: HttpRequest, model: ServedModel) -> AsyncIterator[None]:
        """The model is loaded and stays so while inside; it is waited for as long as the client stays."""
        model.waiting.add(request)
        try:
            with request.cancellable():
                await self.load(model)
            self._add_user(request, model)
            yield
        finally:
            model.waiting.discard(request)
            self.end_use(request, model)

    def _add_user(self, request: HttpRequest, model: ServedModel) -> None:
        model.users.add(request)
        self.sleep.put_off(model)
        if model.expiry:
            model.expiry.cancel()
            model.expiry = None

    def end_use(self, request: HttpRequest, model: ServedModel) -> None:
        """The request needs the model no longer."""
        model.users.discard(request)
        model.used_at = time.monotonic()
        if not model.users:
            self._left.set()
            self._expect_expiry(model)
            self.sleep.expect(model)

    async def _left_alone(self, model: ServedModel) -> None:
        """Wait until no request uses the model."""
        while model.users:
            self._left.clear()
            await self._left.wait()

    # ---- how long a model stays -------------------------------------------------------------------------------

    def keep(self, model: ServedModel, seconds: float | None) -> None:
        """Keep the model loaded for `seconds` without requests; None: for ever."""
        model.keep_alive_s = seconds
        if not model.users:
            self._expect_expiry(model)

    def _expect_expiry(self, model: ServedModel) -> None:
        if model.expiry:
            model.expiry.cancel()
            model.expiry = None
        if model.keep_alive_s is not None and model.loaded_engine and model.loader:
            model.expires_at = time.monotonic() + model.keep_alive_s
            model.expiry = asyncio.get_running_loop().call_later(model.keep_alive_s, self._expire, model)

    def _expire(self, model: ServedModel) -> None:
        model.expiry = None
        if model.loaded_engine and not model.users:
            self.unload(model, "idle")

    # ---- loading ----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Load all models; where memory is bounded, only the first, but the files of all are fetched and measured."""
        models = self._models.models
        at_start = [model for model in models if not model.on_demand]
        for model in at_start if self.budget_bytes is None else at_start[:1]:
            await self.load(model)
        for model in models:
            if model.loader and model.n_bytes is None and not model.on_demand:
                self._check_fits(model, await self._on_thread(model.loader.n_bytes))

    def load(self, model: ServedModel) -> "asyncio.Future[None]":
        """Have a model loaded. All who ask meanwhile wait for the same load, which nobody's leaving ends."""
        if model not in self._models.models:
            raise self._models.unknown(model.name)  # the model was deleted since the request has found it
        if is_ready(model):
            model.users |= model.waiting
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        if model.load_task is None:
            model.load_task = asyncio.create_task(self._load(model))
            model.load_task.add_done_callback(lambda task: self._load_ended(model, task))
        return asyncio.shield(model.load_task)

    def _load_ended(self, model: ServedModel, task: "asyncio.Task[None]") -> None:
        model.load_task = None
        if not task.cancelled() and task.exception():
            self.n_failures += 1

    async def _load(self, model: ServedModel) -> None:
        if model.unload_task:
            await asyncio.shield(model.unload_task)
        if model.rest.task:
            await asyncio.wait([model.rest.task])
        async with self._turn:
            if self._models.phase is Phase.CLOSING:
                raise self._models.unavailable()
            if model.loaded_engine:
                await self._wake(model, model.loaded_engine)
                return
            loader = model.loader
            began = time.monotonic()
            assert loader, "a model without a loader is never unloaded"
            try:
                engine = await self._loaded_engine(model, loader)
            except Exception as error:
                raise load_failure(model, error) from error
            finally:
                self._loading_bytes = 0
            model.attach(engine, self._models.defaults)
            model.keep_alive_s = self.keep_alive_s
            model.used_at = time.monotonic()
            model.users |= model.waiting  # nothing else may unload it first
            if not model.users:
                self._expect_expiry(model)
                self.sleep.expect(model)
            self.n_loads += 1
            self.max_bytes = max(self.max_bytes, self.n_bytes)
            weights_mb = engine.n_weight_bytes / 1e6
            kv_mb = (engine.n_bytes - engine.n_weight_bytes) / 1e6
            facts = model.name, time.monotonic() - began, weights_mb, kv_mb
            log.info("loaded model=%s seconds=%.2f weights_mb=%.0f kv_reserved_mb=%.0f", *facts)

    async def _wake(self, model: ServedModel, engine: ServedEngine) -> None:
        """Room for what the model has given back, then the model."""
        try:
            await self._free_memory_for(model, model.rest.n_bytes)
            await self.sleep.wake(model, engine)
        except Exception as error:
            raise load_failure(model, error) from error
        finally:
            self._loading_bytes = 0
        model.used_at = time.monotonic()
        model.users |= model.waiting

    async def _loaded_engine(self, model: ServedModel, loader: ModelLoader) -> ServedEngine:
        """Room first, then the engine; one that turns out larger than its files promised must find room as well."""
        n_bytes = model.n_bytes if model.n_bytes is not None else await self._on_thread(loader.n_bytes)
        await self._free_memory_for(model, n_bytes)
        engine = await self._on_thread(loader.load)
        try:
            await self._free_memory_for(model, engine.n_bytes)
            await warm_up(engine)
            await change_adapters(engine, model)
        except BaseException:
            await engine.close()
            raise
        return engine

    async def _free_memory_for(self, model: ServedModel, n_bytes: int) -> None:
        budget = self.budget_bytes
        self._loading_bytes = 0
        self._check_fits(model, n_bytes)
        while budget is not None and self.n_bytes + n_bytes > budget:
            await self._unload_one(model)
        self._loading_bytes = n_bytes

    def _check_fits(self, model: ServedModel, n_bytes: int) -> None:
        if self.budget_bytes is not None and n_bytes > self.budget_bytes:
            needs = f"needs {n_bytes / 1e6:.0f} MB"
            has = f"all models may take {self.budget_bytes / 1e6:.0f} MB"
            raise ConfigError(
                f"The model {model.name} {needs}, but {has}: raise --models-budget, or lower its kv_bytes."
            )

    async def _unload_one(self, loading: ServedModel) -> None:
        """Unload the model that was used least recently, if possible one without requests."""
        others = [each for each in self._models.loaded if each.loader and each is not loading]
        if not others:
            raise ServerError(f"There is no room for {loading.name}: raise --models-budget.")
        victim = min(others, key=lambda each: (bool(each.users), each.used_at))
        if any(not is_of_batch(request) for request in loading.waiting):
            end_batched(victim)
        await asyncio.shield(self.unload(victim, f"room for {loading.name}"))

    def _on_thread(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """On a thread that does not keep the process alive, so that a signal is obeyed while loading."""
        future, self._thread = on_daemon_thread(work)
        return future

    # ---- unloading --------------------------------------------------------------------------------------------

    async def unloaded(self, model: ServedModel) -> None:
        """Have a model unloaded because somebody asked; nobody's leaving ends it."""
        end_batched(model)
        await asyncio.shield(self.unload(model, "requested"))

    def unload(self, model: ServedModel, reason: str) -> "asyncio.Task[None]":
        """Unload a model once the requests that use it are finished; new ones wait until it is loaded again."""
        if model.unload_task is None:
            model.unload_task = asyncio.create_task(self._unload(model, reason))
        return model.unload_task

    async def _unload(self, model: ServedModel, reason: str) -> None:
        try:
            await self._left_alone(model)
            if model.rest.task:
                await asyncio.wait([model.rest.task])
            engine = model.loaded_engine
            if engine is None:
                return
            self.sleep.put_off(model)
            await engine.close()
            counts = engine.snapshot()
            self.past.update({name: getattr(counts, name) for name in COUNTED})
            engine = model.loaded_engine = None
            model.rest = ModelRest()
            self._expect_expiry(model)
            await asyncio.to_thread(give_back_memory)
            self.n_unloads += 1
            log.info("unloaded model=%s reason=%r megabytes=%.0f", model.name, reason, (model.n_bytes or 0) / 1e6)
        finally:
            model.unload_task = None

    async def close(self) -> None:
        """Unload everything; the server has ended its requests."""
        for model in self._models.models:
            self.sleep.put_off(model)
            for task in filter(None, (model.load_task, model.unload_task, model.rest.task)):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
            if model.expiry:
                model.expiry.cancel()
            if model.loaded_engine:
                await model.loaded_engine.close()


def is_ready(model: ServedModel) -> bool:
    """Whether requests may use it now."""
    return model.loaded_engine is not None and not (model.unload_task or model.rest.asleep or model.rest.task)


def is_of_batch(request: object) -> bool:
    return isinstance(request, HttpRequest) and request.on_behalf is not None


def end_batched(model: ServedModel) -> None:
    """End what batches have a model do, lest a client wait for it; they ask for it again later."""
    for request in filter(is_of_batch, list(model.users)):
        assert isinstance(request, HttpRequest)
        message = f"The model {model.name} is needed less than another: try again later."
        request.cancel(HttpError(503, message, param="model", headers={"retry-after": "1"}))


def load_failure(model: ServedModel, error: Exception) -> HttpError:
    """The error of requests for a model that cannot be loaded."""
    if isinstance(error, HttpError):
        return error
    is_ours = isinstance(error, TahrError)  # messages of other libraries may quote anything
    why = str(error) if is_ours else f"{type(error).__name__}, see the server's log"
    log.error("model %s could not be loaded: %s", model.name, why, exc_info=None if is_ours else error)
    message = f"The model {model.name} could not be loaded: {why}"
    return HttpError(503, message, param="model", code="model_load_failed")


def start_failure(error: HttpError, n_models: int) -> BaseException:
    """The error that ends the start: it says which of several models it is about, and how to change that one."""
    cause = error.__cause__
    if n_models > 1 and isinstance(cause, ConfigError):
        return ConfigError(f"{error} Options of one model stand after its name, as in --model NAME,ctx=N.")
    return cause or error


async def change_adapters(engine: ServedEngine, model: ServedModel) -> None:
    """Restore the adapters of the last load; one that is gone does not fail the model."""
    loaded = {each.name for each in engine.adapters()}
    for name, change in list(model.changed_adapters.items()):
        try:
            if change:
                await engine.add_adapter(name, *change, replaces=name in loaded)
            elif name in loaded:
                await engine.remove_adapter(name)
        except TahrError as error:
            del model.changed_adapters[name]
            log.error("the adapter %s of %s is lost: %s", name, model.name, error)


def give_back_memory() -> None:
    """Give freed memory to the system: threads come and go with models, and glibc keeps what each of them has freed.

    Requests that were cancelled may still refer to an engine from tracebacks, which only the collector frees.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


async def warm_up(engine: ServedEngine) -> None:
    """One token, so that the first client does not pay for first uses, and readiness means what it says.

    The engine goes on by itself whenever it is idle.
    """
    await compute_one(engine)
    engine.warm_when_idle()


async def compute_one(engine: ServedEngine) -> None:
    """Generate a token; an encoder, which generates none, embeds one, and who writes down recordings gets one."""
    if engine.reads_recordings:
        return await write_down_noise(engine)
    if engine.speaking:
        return await say_something(engine, engine.speaking.description)
    if engine.inputs.encoding:
        await engine.embed([[engine.tokenizer.bos_id or 0]], EmbeddingOptions())
        return None
    params = SamplingParams(max_tokens=1, temperature=0.0, cache_prompt=False)
    first = GenerationRequest([engine.tokenizer.bos_id or 0], params, cuts_length=True)
    tokens: list[int] = []

    def keep(chunk: Chunk) -> bool:
        tokens.extend(chunk.token_ids)
        return True

    await (await engine.submit(resolve(first, RequestFacts.of(engine)))).read(keep)
    if not tokens:
        raise ServerError(f"{engine.name} is loaded, but generated no token: please report this.")
    return None


async def say_something(engine: ServedEngine, description: str) -> None:
    spoken = await engine.speak("a", SpeakOptions(max_frames=1, seed=0, instructions=description))
    async for _ in spoken:
        pass


async def write_down_noise(engine: ServedEngine) -> None:
    options = TranscribeOptions(temperatures=(0.0,), beams=1, best_of=1)
    spoken = await engine.transcribe(a_tenth_of_noise(), options, max_s=1)
    async for _ in spoken:
        pass


def on_daemon_thread(work: Callable[[], T]) -> "tuple[asyncio.Future[T], threading.Thread]":
    """Run something on a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(method: Callable[[Any], None], outcome: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(lambda: None if future.done() else method(outcome))

    def run() -> None:
        try:
            settle(future.set_result, work())
        except BaseException as error:
            settle(future.set_exception, error)

    thread = threading.Thread(target=run, name="tahr-load", daemon=True)
    thread.start()
    return future, thread
