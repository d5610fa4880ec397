"""Routes that describe the server: health, models, metrics, version."""

from tahr import __version__
from tahr.server.http.accounts import Account
from tahr.server.http.request import HttpRequest
from tahr.server.models.registry import ModelRegistry, ServedModel, is_ready
from tahr.server.observe.metrics import CONTENT_TYPE
from tahr.server.state.state import ServerState
from tahr.server.status.health import report
from tahr.server.status.replies import Modalities, ModelCard, ModelList, Version


async def health(request: HttpRequest, state: ServerState) -> None:
    """200 only if a request would get a token: at once, or after the step that runs (`busy`)."""
    made = report(state)
    await request.respond_json(made, status=200 if is_ready(made.status) else 503)


async def ready(request: HttpRequest, state: ServerState) -> None:
    """/health in one word."""
    fine = is_ready(state.models.status) and not state.is_draining
    await request.respond_json({"status": "ready" if fine else "not ready"}, status=200 if fine else 503)


async def metrics(request: HttpRequest, state: ServerState) -> None:
    """All metrics, for Prometheus."""
    engines = {model.name: model.engine.snapshot() for model in state.models.loaded}
    await request.respond(state.metrics.text(engines, state.sessions.stats, state.pool), CONTENT_TYPE)


async def version(request: HttpRequest, state: ServerState) -> None:
    """Which Tahr this is."""
    await request.respond_json(Version(__version__))


async def models(request: HttpRequest, state: ServerState) -> None:
    """All models, by all their names."""
    # The first is what a request gets that names none, and what clients choose.
    found = cards(state.models, request.account)
    first, last = (found[0].id, found[-1].id) if found else (None, None)
    await request.respond_json(ModelList(found, first_id=first, last_id=last))


async def model(request: HttpRequest, state: ServerState) -> None:
    """One model."""
    name = request.path.removeprefix("/v1/models/")
    found = {card.id.lower(): card for card in cards(state.models, request.account)}.get(name.lower())
    if found is None:
        raise state.models.unknown(name)
    await request.respond_json(found)


def cards(models: ModelRegistry, account: Account) -> list[ModelCard]:
    """The models that a key is good for."""
    found = [each for each in models.models if account.may_use(each.names)]
    return [card for each in found for card in [*own_cards(each), *adapter_cards(each)]]


def own_cards(model: ServedModel) -> list[ModelCard]:
    facts = (model.created, model.context_size)
    found = modalities(model)
    return [ModelCard(name, *facts, name, state=model.state, architecture=found) for name in model.names]


def modalities(model: ServedModel) -> Modalities | None:
    """The forms that a loaded model reads and writes."""
    if model.loaded_engine is None:
        return None
    if model.loaded_engine.reads_recordings:
        return Modalities(["audio"], ["text"])
    if model.loaded_engine.speaking:
        return Modalities(["text"], ["audio"])
    sees = model.loaded_engine.inputs.pictures is not None
    return Modalities(["text", "image"] if sees else ["text"], ["text"])


def adapter_cards(model: ServedModel) -> list[ModelCard]:
    """The model with each of its adapters."""
    loaded = model.loaded_engine.adapters() if model.loaded_engine else ()
    names = [f"{model.name}:{each.name}" for each in loaded]
    facts = (model.created, model.context_size, model.name, model.name, model.state)
    return [ModelCard(name, *facts, modalities(model)) for name in names]
