"""Which models there are: /api/tags, /api/ps, /api/show, /api/copy, /api/delete, /api/version."""

import asyncio
import logging
import time

import msgspec

from tahr import __version__, hub
from tahr.errors import ConfigError, ModelNotFound, TahrError
from tahr.generation.thinking import can_think
from tahr.loading.model_facts import ModelFacts
from tahr.server.bodies.decoding import decode
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.http.request import HttpRequest
from tahr.server.llamacpp.fill_in import fill_in_tokens
from tahr.server.models.registry import ServedModel
from tahr.server.ollama.bodies import CopyBody, DeleteBody, ShowBody
from tahr.server.ollama.fields import LATEST, find_model, served_name
from tahr.server.ollama.replies import ModelDetails, OllamaModel, OllamaModelList, OllamaVersion, ShowReply, timestamp
from tahr.server.state.state import ServerState

log = logging.getLogger("tahr.server")

VERSION = "0.12.6"  # the Ollama whose routes these follow: clients ask whether it is new enough
SHOW = msgspec.json.Decoder(ShowBody)
COPY = msgspec.json.Decoder(CopyBody)
DELETE = msgspec.json.Decoder(DeleteBody)
MAX_NAME_CHARS = 128
FOR_EVER = "2318-01-01T00:00:00Z"
SIZES = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


async def tags(request: HttpRequest, state: ServerState) -> None:
    """All models, as Ollama lists them."""
    models = [(name, model) for model in state.models.models for name in model.names]
    await request.respond_json(OllamaModelList([await listed(name, model) for name, model in models]))


async def running(request: HttpRequest, state: ServerState) -> None:
    """The models in memory."""
    made = []
    for model in state.models.loaded:
        card = await listed(model.name, model)
        if model.loaded_engine is None:  # unloaded meanwhile: to ask must not load it again
            continue
        left_s = model.expires_at - time.monotonic()
        card.expires_at = timestamp(time.time() + max(0.0, left_s)) if model.expiry else FOR_EVER
        card.size = model.n_bytes or 0
        card.size_vram = model.engine.n_device_bytes
        card.modified_at = msgspec.UNSET
        card.context_length = model.engine.context_size
        made.append(card)
    await request.respond_json(OllamaModelList(made))


async def show(request: HttpRequest, state: ServerState) -> None:
    """Describe a model."""
    body = decode(SHOW, await request.body())
    model = find_model(state.models, body.given)
    engine = model.engine
    facts = await facts_of(model)
    template = facts.template or (engine.template.source if engine.template else "")
    reply = ShowReply(
        modelfile=f"# Served by Tahr {__version__}.\nFROM {model.name}\n",
        parameters=parameters(model),
        template=template,
        details=details(facts),
        model_info=dict(facts.metadata or {}) | {"general.parameter_count": facts.n_parameters},
        capabilities=capabilities(model),
        modified_at=timestamp(facts.modified),
    )
    await request.respond_json(reply)


async def version(request: HttpRequest, state: ServerState) -> None:
    """The version of Ollama whose API this is."""
    await request.respond_json(OllamaVersion(VERSION, __version__))


async def copy(request: HttpRequest, state: ServerState) -> None:
    """One more name for a model, for as long as the server runs."""
    body = decode(COPY, await request.body())
    model = find_model(state.models, body.source)
    name = body.destination.removesuffix(LATEST)
    if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise bad_field("destination", f"destination must be a name of at most {MAX_NAME_CHARS} letters.")
    try:
        state.models.add_name(model, name)
    except ConfigError as error:
        raise bad_field("destination", str(error)) from error
    await request.respond(b"")


async def delete(request: HttpRequest, state: ServerState) -> None:
    """Forget a name; with the last one the model is unloaded, and what was fetched of it is deleted."""
    name = served_name(state.models, decode(DELETE, await request.body()).given)
    model = state.models.find(name)
    if len(model.names) > 1:
        state.models.remove_name(name)
        return await request.respond(b"")
    if model.loader is None or len(state.models.models) == 1:
        raise HttpError(409, f"The model {model.name} is the one this server answers with: it is not deleted.")
    state.models.remove_name(name)
    with request.cancellable():
        if model.load_task:
            await asyncio.wait({model.load_task})
        if model.loaded_engine:
            await state.pool.unloaded(model)
        await asyncio.to_thread(remove_files, model)
    return await request.respond(b"")


def remove_files(model: ServedModel) -> None:
    """Delete files that Tahr fetched; a user's own file stays."""
    assert model.loader
    try:
        hub.remove(model.loader.source)
    except ModelNotFound as error:
        log.info("the files of %s stay: %s", model.name, error)


# ---- facts --------------------------------------------------------------------------------------------------


async def listed(name: str, model: ServedModel) -> OllamaModel:
    facts = await facts_of(model)
    shown = name if ":" in name else name + LATEST
    return OllamaModel(
        name=shown,
        model=shown,
        size=facts.size_bytes,
        digest=facts.digest,
        details=details(facts),
        modified_at=timestamp(facts.modified or model.created),
    )


async def facts_of(model: ServedModel) -> ModelFacts:
    """Read once; a model whose files cannot be read has none."""
    if model.facts is None and model.loader:
        try:
            model.facts = await asyncio.to_thread(model.loader.facts)
        except TahrError as error:
            log.warning("the files of %s say nothing: %s", model.name, error)
    return model.facts or ModelFacts(digest="0" * 64, modified=model.created)


def details(facts: ModelFacts) -> ModelDetails:
    families = [facts.family] if facts.family else []
    return ModelDetails("", facts.format, facts.family, families, short_count(facts.n_parameters), facts.quantization)


def short_count(n: int) -> str:
    """`134.5M`, as Ollama writes numbers of parameters."""
    unit, letter = next(((unit, letter) for unit, letter in SIZES if n >= unit), (1, ""))
    return f"{n / unit:.1f}{letter}" if n else ""


def parameters(model: ServedModel) -> str:
    """The sampling values that hold where a request says nothing, as a Modelfile has them."""
    names = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "repetition_penalty": "repeat_penalty"}
    values = {shown: getattr(model.defaults, name) for name, shown in names.items()}
    return "\n".join(f"{name:<30} {value}" for name, value in values.items() if value is not None)


def capabilities(model: ServedModel) -> list[str]:
    engine = model.engine
    template = engine.template
    has = {
        "completion": not engine.inputs.encoding,
        "vision": engine.inputs.pictures is not None,
        "embedding": not engine.inputs.scores_pairs,
        "tools": template is not None,
        "thinking": template is not None and can_think(template),
        "insert": fill_in_tokens(engine.tokenizer) is not None,
    }
    return [name for name, there in has.items() if there]
