"""/props and /slots: what llama.cpp's clients look at before they ask."""

from pathlib import PurePath

from tahr import __version__
from tahr.server.http.errors import HttpError
from tahr.server.http.request import HttpRequest
from tahr.server.llamacpp.fields import settings_shown
from tahr.server.llamacpp.replies import AdapterView, PropsReply, SlotView
from tahr.server.state.state import ServerState
from tahr.text.tokens.tokenizer import Tokenizer


async def props(request: HttpRequest, state: ServerState) -> None:
    """Describe the first model."""
    model = state.models.find(None)
    engine = model.engine
    settings = {"n_ctx": engine.context_size, "params": settings_shown(None, model.defaults)}
    source = model.loader.source if model.loader else engine.name
    reply = PropsReply(
        default_generation_settings=settings,
        total_slots=engine.snapshot().max_batch_size,
        model_alias=model.name,
        model_path=PurePath(source).name,  # no client's business
        chat_template=engine.template.source if engine.template else "",
        bos_token=piece(engine.tokenizer, engine.tokenizer.bos_id),
        eos_token=piece(engine.tokenizer, engine.tokenizer.eos_id),
        build_info=f"tahr-{__version__}",
        modalities={"vision": engine.inputs.pictures is not None, "audio": False},
    )
    await request.respond_json(reply)


def piece(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.piece(token)


async def adapters(request: HttpRequest, state: ServerState) -> None:
    """The adapters of the first model, numbered as requests may name them; where they lie is not shown."""
    loaded = state.models.find(None).engine.adapters()
    await request.respond_json([AdapterView(i, PurePath(each.path).name, each.scale) for i, each in enumerate(loaded)])


async def set_adapters(request: HttpRequest, state: ServerState) -> None:
    """Refused: one client would change the replies of all others."""
    message = "Scales for all requests cannot be set here: send `lora` with a request, such as [{'id': 0, 'scale': 1}]."
    raise HttpError(400, message, param="lora", code="unsupported")


async def slots(request: HttpRequest, state: ServerState) -> None:
    """The places in the batch of the first model, and how many of them are taken."""
    engine = state.models.find(None).engine
    stats = engine.snapshot()
    guesses = stats.spec_drafts > 0
    views = [SlotView(i, engine.context_size, guesses, i < stats.requests_running) for i in range(stats.max_batch_size)]
    await request.respond_json(views)
