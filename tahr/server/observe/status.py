"""What the server says about itself."""

from pathlib import Path
from urllib.parse import unquote

from tahr import __version__
from tahr.server.http.errors import Refusal
from tahr.server.http.request import Call
from tahr.server.observe.health import report
from tahr.server.observe.metrics import CONTENT_TYPE
from tahr.server.openai.replies import ModelCard, ModelList, Version
from tahr.server.state import Front

PAGE = Path(__file__).parents[1] / "chat_page.html"
PAGE_HEADERS = {
    # The page is one file: it may load nothing from anywhere and be shown in no other page.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
}


async def health(call: Call) -> None:
    """200 only if a request would get a token now."""
    await call.json(report(call.front), status=200 if call.front.ready else 503)


async def ready(call: Call) -> None:
    """The same answer as /health, in one word."""
    await call.json({"status": "ready" if call.front.ready else "not ready"}, status=200 if call.front.ready else 503)


async def metrics(call: Call) -> None:
    """Everything that is measured, for Prometheus."""
    engines = {served.name: served.engine.snapshot() for served in call.front.models}
    await call.reply(call.front.measures.text(engines), CONTENT_TYPE)


async def version(call: Call) -> None:
    """Which Tahr this is."""
    await call.json(Version(__version__))


async def models(call: Call) -> None:
    """All models, by all their names."""
    await call.json(ModelList(sorted(cards(call.front), key=lambda card: card.id)))


async def model(call: Call) -> None:
    """One model."""
    name = unquote(call.path.removeprefix("/v1/models/"))
    found = next((card for card in cards(call.front) if card.id == name), None)
    if found is None:
        served = ", ".join(card.id for card in cards(call.front)) or "none yet"
        message = f"The model {name!r} is not served here: there is {served}."
        raise Refusal(404, message, param="model", code="model_not_found")
    await call.json(found)


def cards(front: Front) -> list[ModelCard]:
    return [ModelCard(name, each.created, each.engine.context_size) for each in front.models for name in each.names]


async def page(call: Call) -> None:
    """A page to chat with."""
    await call.reply(PAGE.read_bytes(), "text/html; charset=utf-8", headers=PAGE_HEADERS)
