"""Routes that put models to sleep and wake them, under the names that vLLM gave them."""

import asyncio

from msgspec import Struct

from tahr.errors import TahrError
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.http.query import query_of
from tahr.server.http.request import HttpRequest
from tahr.server.models.registry import ServedModel
from tahr.server.state.route import Route
from tahr.server.state.state import ServerState


class SleepReply(Struct):
    """Whether all models sleep, and the state of each."""

    is_sleeping: bool
    models: dict[str, str]


async def sleep(request: HttpRequest, state: ServerState) -> None:
    """Put the loaded models to sleep, or the one that `model` names, once their requests are finished."""
    models = models_of(request, state)
    with request.cancellable():
        for model in models:
            try:
                await asyncio.shield(state.pool.sleep.sleep(model))
            except TahrError as error:
                message = f"{model.name} stays awake: {error}"
                raise HttpError(409, message, param="model", code="cannot_sleep") from error
    await request.respond_json(reply_of(models))


async def wake(request: HttpRequest, state: ServerState) -> None:
    """Wake the models that sleep, or the one that `model` names; responds when they are awake."""
    models = models_of(request, state)
    with state.admission.place(request):
        for model in models:
            async with state.pool.loaded(request, model):
                pass
    await request.respond_json(reply_of(models))


async def is_sleeping(request: HttpRequest, state: ServerState) -> None:
    """Whether all loaded models sleep, or the one that `model` names."""
    await request.respond_json(reply_of(models_of(request, state)))


def models_of(request: HttpRequest, state: ServerState) -> list[ServedModel]:
    """The loaded models that a query is about."""
    state.models.check_ready()
    query = query_of(request, ("model", "level", "mode", "tags"))
    if query.get("level", "1") != "1":
        raise bad_field(
            "level", "level must be 1: weights stay. Unload a model to let its weights go too.", "unsupported"
        )
    for name in ("mode", "tags"):
        if name in query:
            raise bad_field(
                name, f"{name} is not supported: requests are finished first, and all memory goes together."
            )
    loaded = state.models.loaded
    if "model" not in query:
        return list(loaded)
    model = state.models.find(query["model"])
    if model not in loaded:
        raise HttpError(409, f"The model {model.name} is not loaded.", param="model", code="model_not_loaded")
    return [model]


def reply_of(models: list[ServedModel]) -> SleepReply:
    return SleepReply(bool(models) and all(each.rest.asleep for each in models), {m.name: m.state for m in models})


ROUTES = [
    Route("POST", "/sleep", sleep, gives=SleepReply, is_admin=True),
    Route("POST", "/wake_up", wake, gives=SleepReply, is_admin=True, aliases=("/wake",)),
    Route("GET", "/is_sleeping", is_sleeping, gives=SleepReply, is_admin=True),
]
