"""Which loaded models sleep: their memory is given back, and a request wakes them sooner than it would load them."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from tahr.errors import TahrError
from tahr.server.models.engine_port import ServedEngine
from tahr.server.models.registry import ModelRegistry, ServedModel

log = logging.getLogger("tahr.server")


class ModelSleep:
    """Puts models to sleep, by hand or after a time without requests. Only the event loop's thread uses it."""

    def __init__(
        self, models: ModelRegistry, after_s: float | None, left_alone: Callable[[ServedModel], Awaitable[None]]
    ):
        self.after_s = after_s
        self.n_sleeps = self.n_wakes = 0
        self._models = models
        self._left_alone = left_alone  # waits until no request uses a model

    @property
    def n_asleep(self) -> int:
        return sum(model.rest.asleep for model in self._models.loaded)

    def expect(self, model: ServedModel) -> None:
        """Nobody uses the model now: it sleeps if that lasts."""
        self.put_off(model)
        if self.after_s is not None and model.loaded_engine and not model.rest.asleep:
            model.rest.due = asyncio.get_running_loop().call_later(self.after_s, self._fall_asleep, model)

    def put_off(self, model: ServedModel) -> None:
        """Somebody uses the model, or it goes."""
        if model.rest.due:
            model.rest.due.cancel()
            model.rest.due = None

    def _fall_asleep(self, model: ServedModel) -> None:
        model.rest.due = None
        if not model.users:
            self.sleep(model).add_done_callback(lambda task: say_why_not(model, task))

    def sleep(self, model: ServedModel) -> "asyncio.Task[None]":
        """Have a model sleep once the requests that use it are finished; new ones wait until it is awake again."""
        if model.rest.task is None:
            model.rest.task = asyncio.create_task(self._sleep(model))
        return model.rest.task

    async def _sleep(self, model: ServedModel) -> None:
        try:
            await self._left_alone(model)
            engine = model.loaded_engine
            if engine is None or model.rest.asleep or model.unload_task:
                return
            began = time.monotonic()
            model.rest.n_bytes = await engine.sleep()
            model.rest.asleep = True
            self.n_sleeps += 1
            seconds = time.monotonic() - began
            log.info("asleep model=%s seconds=%.2f megabytes=%.0f", model.name, seconds, model.rest.n_bytes / 1e6)
        finally:
            model.rest.task = None

    async def wake(self, model: ServedModel, engine: ServedEngine) -> None:
        """Have a model that sleeps take its memory again."""
        if not model.rest.asleep:
            return
        began = time.monotonic()
        await engine.wake()
        model.rest.asleep = False
        model.rest.n_bytes = 0
        self.n_wakes += 1
        log.info("awake model=%s seconds=%.3f", model.name, time.monotonic() - began)


def say_why_not(model: ServedModel, task: "asyncio.Task[None]") -> None:
    """A model that cannot sleep stays awake until it is idle the next time, or for good."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, TahrError):
        log.warning("%s stays awake: %s", model.name, error)
    elif error:
        log.error("%s could not be put to sleep", model.name, exc_info=error)
