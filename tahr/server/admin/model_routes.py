"""Routes that list, load and unload models."""

import time

import msgspec
from msgspec import Struct

from tahr.server.bodies.decoding import decode
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.http.request import HttpRequest
from tahr.server.models.engine_port import ServedEngine
from tahr.server.models.registry import ServedModel
from tahr.server.state.route import Route
from tahr.server.state.state import ServerState


class LoadModelBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /admin/models/load; `keep_alive` in seconds, negative: for ever."""

    model: str
    keep_alive: float | None = None


class UnloadModelBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /admin/models/unload."""

    model: str


class ModelMemory(Struct):
    """Memory of a loaded model by its use."""

    weight_bytes: int
    kv_reserved_bytes: int  # limit on keys and values
    kv_used_bytes: int  # pages of running sequences; those that only the prefix cache holds are free to take
    kv_host_bytes: int = 0  # pages that are kept in the host's memory
    kv_disk_bytes: int = 0  # bytes of the directory that pages are kept in
    host_weight_bytes: int = 0  # weights in the host's memory, of a model that runs on a GPU


class PoolEntry(Struct):
    """A model of this server, and whether it is in memory."""

    id: str
    names: list[str]
    state: str
    n_bytes: int | None  # limit on weights and KV; None: it was not loaded yet
    memory: "ModelMemory | None"  # None: it is not loaded
    context_size: int | None
    active_requests: int
    waiting_requests: int  # requests that wait for the load
    keep_alive_s: float | None  # None: for ever
    expires_in_s: float | None  # None: not by itself


class PoolList(Struct):
    """All models, and the memory they take."""

    data: list[PoolEntry]
    n_bytes: int
    budget_bytes: int | None
    object: str = "list"


LOAD = msgspec.json.Decoder(LoadModelBody)
UNLOAD = msgspec.json.Decoder(UnloadModelBody)


async def listed(request: HttpRequest, state: ServerState) -> None:
    """All models, loaded or not."""
    state.models.check_ready()
    entries = [entry(model) for model in state.models.models]
    await request.respond_json(PoolList(entries, state.pool.n_bytes, state.pool.budget_bytes))


async def load(request: HttpRequest, state: ServerState) -> None:
    """Load a model that is served here; responds when it is loaded."""
    body = decode(LOAD, await request.body())
    model = state.models.find(body.model)
    with state.admission.place(request):
        async with state.pool.loaded(request, model):
            if body.keep_alive is not None:
                state.pool.keep(model, body.keep_alive if body.keep_alive >= 0 else None)
    await request.respond_json(entry(model))


async def unload(request: HttpRequest, state: ServerState) -> None:
    """Unload a model; responds when its requests are finished and its memory is free."""
    model = state.models.find(decode(UNLOAD, await request.body()).model)
    check_can_unload(model)
    if model.loaded_engine or model.unload_task:
        with request.cancellable():
            await state.pool.unloaded(model)
    await request.respond_json(entry(model))


def check_can_unload(model: ServedModel) -> None:
    if model.loader is None:
        raise bad_field("model", f"The model {model.name} cannot be loaded again, so it is not unloaded.")
    if model.load_task:
        raise HttpError(409, f"The model {model.name} is being loaded: unload it when it is.", code="model_loading")


def entry(model: ServedModel) -> PoolEntry:
    expires_in_s = model.expires_at - time.monotonic() if model.expiry else None
    return PoolEntry(
        id=model.name,
        names=list(model.names),
        state=model.state,
        n_bytes=model.n_bytes,
        memory=memory_of(model.loaded_engine) if model.loaded_engine else None,
        context_size=model.context_size,
        active_requests=len(model.users),
        waiting_requests=len(model.waiting - model.users),
        keep_alive_s=model.keep_alive_s,
        expires_in_s=expires_in_s and max(0.0, round(expires_in_s, 3)),
    )


def memory_of(engine: ServedEngine) -> ModelMemory:
    now = engine.snapshot()
    reserved = engine.n_bytes - engine.n_weight_bytes
    used = reserved * now.pages_used // now.pages_total if now.pages_total else 0
    elsewhere = (now.tiers.host_bytes, now.tiers.disk_bytes) if now.tiers else (0, 0)
    return ModelMemory(engine.n_weight_bytes, reserved, used, *elsewhere, engine.n_host_weight_bytes)


ROUTES = [
    Route("GET", "/admin/models", listed, gives=PoolList, is_admin=True),
    Route("POST", "/admin/models/load", load, LoadModelBody, PoolEntry, is_admin=True),
    Route("POST", "/admin/models/unload", unload, UnloadModelBody, PoolEntry, is_admin=True),
]
