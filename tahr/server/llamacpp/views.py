"""/props and /slots: what llama.cpp's clients look at before they ask."""

from pathlib import PurePath

from tahr import __version__
from tahr.server.http.request import HttpRequest
from tahr.server.llamacpp.fields import settings_shown
from tahr.server.llamacpp.replies import PropsReply, SlotView
from tahr.server.state.state import ServerState
from tahr.text.tokens.tokenizer import Tokenizer


async def props(request: HttpRequest, state: ServerState) -> None:
    """What the first model is."""
    model = state.models.find(None)
    engine = model.engine
    settings = {"n_ctx": engine.context_size, "params": settings_shown(None, model.defaults)}
    source = model.loader.source if model.loader else engine.name
    reply = PropsReply(
        default_generation_settings=settings,
        total_slots=engine.snapshot().max_batch_size,
        model_alias=model.name,
        model_path=PurePath(source).name,  # where it lies is not a client's business
        chat_template=engine.template.source if engine.template else "",
        bos_token=piece(engine.tokenizer, engine.tokenizer.bos_id),
        eos_token=piece(engine.tokenizer, engine.tokenizer.eos_id),
        build_info=f"tahr-{__version__}",
        modalities={"vision": False, "audio": False},
    )
    await request.respond_json(reply)


def piece(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.piece(token)


async def slots(request: HttpRequest, state: ServerState) -> None:
    """The places in the batch of the first model, and how many of them are taken."""
    engine = state.models.find(None).engine
    stats = engine.snapshot()
    guesses = stats.spec_drafts > 0
    views = [SlotView(i, engine.context_size, guesses, i < stats.requests_running) for i in range(stats.max_batch_size)]
    await request.respond_json(views)
