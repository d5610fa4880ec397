"""The table of routes, put together from those of each API, and the search in it."""

from functools import cache

from tahr.server.admin import adapters, drain, model_routes, sleeping
from tahr.server.anthropic import routes as anthropic
from tahr.server.audio import routes as audio
from tahr.server.files import routes as files
from tahr.server.http.request import HttpRequest
from tahr.server.http.sse import encode
from tahr.server.llamacpp import routes as llamacpp
from tahr.server.ollama import routes as ollama
from tahr.server.openai import openapi
from tahr.server.openai import routes as openai
from tahr.server.page import routes as page
from tahr.server.responses import routes as responses
from tahr.server.state.route import Route
from tahr.server.state.state import ServerState
from tahr.server.status import replies, status, usage


async def openapi_document(request: HttpRequest, state: ServerState) -> None:
    """This API, described by the tables it is made of."""
    await request.respond(description())


@cache
def description() -> bytes:
    """Made once: it takes tens of milliseconds, in which the event loop does nothing else."""
    return encode(openapi.document(ROUTES))


OWN = [
    Route("POST", "/admin/loras", adapters.add, adapters.AdapterBody, adapters.AdapterCard, is_admin=True),
    Route("GET", "/admin/loras", adapters.listed, gives=adapters.AdapterList, is_admin=True),
    Route("DELETE", "/admin/loras/", adapters.remove, gives=adapters.AdapterCard, is_admin=True),
    Route("POST", "/v1/load_lora_adapter", adapters.load_like_vllm, adapters.LoadAdapterBody, is_admin=True),
    Route("POST", "/v1/unload_lora_adapter", adapters.unload_like_vllm, adapters.UnloadAdapterBody, is_admin=True),
    Route("POST", "/drain", drain.drain, gives=drain.DrainReply, status=202, is_admin=True),
    Route("GET", "/health", status.health, gives=replies.HealthReply, is_open=True),
    Route("GET", "/ready", status.ready, is_open=True),
    Route("GET", "/metrics", status.metrics),
    Route("GET", "/version", status.version, gives=replies.Version),
    Route("GET", "/v1/usage", usage.usage, gives=usage.UsageReply),
    Route("GET", "/openapi.json", openapi_document),
]
ROUTES = [
    *openai.ROUTES,
    *audio.ROUTES,
    *responses.ROUTES,
    *files.ROUTES,
    *anthropic.ROUTES,
    *ollama.ROUTES,
    *llamacpp.ROUTES,
    *model_routes.ROUTES,
    *sleeping.ROUTES,
    *OWN,
    *page.ROUTES,
]

Methods = dict[str, Route]


def by_path(routes: list[Route]) -> dict[str, Methods]:
    """The routes of every path, its other names among them."""
    found: dict[str, Methods] = {}
    for route in routes:
        for path in (route.path, *route.aliases):
            found.setdefault(path, {})[route.method] = route
    return found


def by_ends(routes: list[Route]) -> list[tuple[tuple[str, str], Methods]]:
    """The routes of paths with something variable in them, the longest first."""
    found: dict[tuple[str, str], Methods] = {}
    for route in routes:
        if route.path != "/" and (route.path.endswith("/") or "{id}" in route.path):
            found.setdefault(route.ends, {})[route.method] = route
    return sorted(found.items(), key=lambda each: -sum(map(len, each[0])))


EXACT = by_path(ROUTES)
VARIABLE = by_ends(ROUTES)
# How paths of an API other than OpenAI's begin, and a route of it, whose errors a path without a route has too.
BELOW = {"/api/": EXACT["/api/chat"]["POST"], "/v1/messages/": EXACT["/v1/messages"]["POST"]}


def methods_of(path: str) -> Methods:
    """The routes of a path by their methods; none, if there is no such path."""
    if path in EXACT:
        return EXACT[path]
    return next((methods for ends, methods in VARIABLE if fits(path, *ends)), {})


def relative_of(path: str) -> Route | None:
    """A route of the API that a path without one belongs to by its beginning."""
    return next((route for prefix, route in BELOW.items() if path.startswith(prefix)), None)


def fits(path: str, prefix: str, suffix: str) -> bool:
    if not path.startswith(prefix) or not path.endswith(suffix) or len(path) <= len(prefix) + len(suffix):
        return False
    return not suffix or "/" not in path[len(prefix) : -len(suffix)]
