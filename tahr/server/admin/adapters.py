"""Adapters over HTTP: which of them a request asks for, and the routes that add, list and remove them."""

from typing import Any

import msgspec
from msgspec import Struct

from tahr.errors import LoadError
from tahr.server.bodies.decoding import decode
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.http.request import HttpRequest
from tahr.server.models.registry import ModelRegistry, ServedModel, UnloadedModel
from tahr.server.state.state import ServerState


class AdapterBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/loras: an adapter to load, for the first model unless one is named."""

    name: str
    path: str
    scale: float = 1.0
    model: str | None = None


class LoadAdapterBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/load_lora_adapter, as vLLM has it."""

    lora_name: str
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False  # replace one of the same name


class UnloadAdapterBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/unload_lora_adapter, as vLLM has it."""

    lora_name: str
    lora_int_id: int | None = None  # ids of another server: only the name counts


class AdapterCard(Struct):
    """A loaded adapter; `id` is the model name that uses it."""

    id: str
    name: str
    path: str
    scale: float
    rank: int
    n_bytes: int
    digest: str
    base: str
    active_requests: int


class AdapterList(Struct):
    data: list[AdapterCard]
    object: str = "list"


BODY = msgspec.json.Decoder(AdapterBody)
LOAD_BODY = msgspec.json.Decoder(LoadAdapterBody)
UNLOAD_BODY = msgspec.json.Decoder(UnloadAdapterBody)
BELOW = "/admin/loras/"


# ---- routes -------------------------------------------------------------------------------------------------


async def add(request: HttpRequest, state: ServerState) -> None:
    """Load an adapter while requests go on."""
    body = decode(BODY, await request.body())
    await request.respond_json(await load(request, state, body))


async def load(
    request: HttpRequest, state: ServerState, body: AdapterBody, path_field: str = "path", replaces: bool = False
) -> AdapterCard:
    model = state.models.find(body.model)
    try:
        with state.pool.used(request, model):
            loaded = await model.engine.add_adapter(body.name, body.path, body.scale, replaces)
    except LoadError as error:
        raise bad_field(path_field, str(error), "adapter_refused") from error
    model.changed_adapters[body.name] = (body.path, body.scale)
    return card(model, loaded)


async def listed(request: HttpRequest, state: ServerState) -> None:
    """All loaded adapters."""
    state.models.check_ready()
    await request.respond_json(AdapterList(cards(state.models)))


async def remove(request: HttpRequest, state: ServerState) -> None:
    """Remove an adapter by its name, or by model:name; requests that use it finish first."""
    await request.respond_json(await unload(request, state, request.path.removeprefix(BELOW)))


async def unload(request: HttpRequest, state: ServerState, name: str) -> AdapterCard:
    state.models.check_ready()
    for model in state.models.loaded:
        for loaded in model.engine.adapters():
            if name in (loaded.name, f"{model.name}:{loaded.name}"):
                with state.pool.used(request, model):
                    await model.engine.remove_adapter(loaded.name)
                model.changed_adapters[loaded.name] = None
                return card(model, loaded)
    for model in state.models.models:
        added = [each for each, change in model.changed_adapters.items() if change]
        if not model.loaded_engine and any(name in (each, f"{model.name}:{each}") for each in added):
            raise UnloadedModel(model)  # the adapter would come back with its model
    raise HttpError(404, f"There is no adapter {name[:80]!r}: GET /admin/loras lists them.", code="adapter_not_found")


async def load_like_vllm(request: HttpRequest, state: ServerState) -> None:
    """Load an adapter, under vLLM's names."""
    body = decode(LOAD_BODY, await request.body())
    requested = AdapterBody(name=body.lora_name, path=body.lora_path, model=body.base_model_name)
    made = await load(request, state, requested, "lora_path", body.load_inplace)
    await request.respond(f"Success: LoRA adapter '{made.name}' added successfully.".encode(), "text/plain")


async def unload_like_vllm(request: HttpRequest, state: ServerState) -> None:
    """Remove an adapter, under vLLM's names."""
    body = decode(UNLOAD_BODY, await request.body())
    made = await unload(request, state, body.lora_name)
    await request.respond(f"Success: LoRA adapter '{made.name}' removed successfully.".encode(), "text/plain")


def cards(models: ModelRegistry) -> list[AdapterCard]:
    return [card(model, loaded) for model in models.loaded for loaded in model.engine.adapters()]


def card(model: ServedModel, loaded: Any) -> AdapterCard:
    names = ("name", "path", "scale", "rank", "n_bytes", "digest", "base")
    values = {name: getattr(loaded, name) for name in names}
    return AdapterCard(id=f"{model.name}:{loaded.name}", **values, active_requests=loaded.n_users)
