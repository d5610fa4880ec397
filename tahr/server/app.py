"""The ASGI application: a table of routes, and what becomes of an error."""

from collections.abc import MutableMapping
from time import perf_counter
from typing import Any

from tahr.server import adapters
from tahr.server.http import guard
from tahr.server.http.errors import HttpError, logged_error, request_id
from tahr.server.http.request import BodyLimits, ClientGone, HttpRequest, Receive, Send
from tahr.server.observe import status
from tahr.server.openai import bodies, chat, completions, embeddings, openapi, replies, tokenize
from tahr.server.route import Route
from tahr.server.state import ServerState


async def openapi_document(request: HttpRequest, state: ServerState) -> None:
    """This API, described by the tables it is made of."""
    await request.respond_json(openapi.document(ROUTES))


ROUTES = [
    Route("POST", "/v1/chat/completions", chat.chat, bodies.ChatBody, replies.ChatReply),
    Route("POST", "/v1/completions", completions.complete, bodies.CompletionBody, replies.TextReply),
    Route("POST", "/v1/embeddings", embeddings.embed, bodies.EmbeddingBody, replies.EmbeddingReply),
    Route("GET", "/v1/models", status.models, gives=replies.ModelList),
    Route("GET", "/v1/models/", status.model, gives=replies.ModelCard),
    Route("POST", "/tokenize", tokenize.tokenize, bodies.TokenizeBody, replies.TokenizeReply),
    Route("POST", "/detokenize", tokenize.detokenize, bodies.DetokenizeBody, replies.DetokenizeReply),
    Route("POST", "/apply-template", chat.apply_template, bodies.TemplateBody, replies.TemplateReply),
    Route("POST", "/admin/loras", adapters.add, adapters.AdapterBody, adapters.AdapterCard, is_admin=True),
    Route("GET", "/admin/loras", adapters.listed, gives=adapters.AdapterList, is_admin=True),
    Route("DELETE", "/admin/loras/", adapters.remove, gives=adapters.AdapterCard, is_admin=True),
    Route("POST", "/v1/load_lora_adapter", adapters.load_like_vllm, adapters.LoadAdapterBody, is_admin=True),
    Route("POST", "/v1/unload_lora_adapter", adapters.unload_like_vllm, adapters.UnloadAdapterBody, is_admin=True),
    Route("GET", "/health", status.health, gives=replies.HealthReply, is_open=True),
    Route("GET", "/ready", status.ready, is_open=True),
    Route("GET", "/metrics", status.metrics),
    Route("GET", "/version", status.version, gives=replies.Version),
    Route("GET", "/openapi.json", openapi_document),
    Route("GET", "/", status.page),
]
EXACT = {path: {r.method: r for r in ROUTES if r.path == path} for path in dict.fromkeys(r.path for r in ROUTES)}
# Some clients are given an address without /v1, and llama.cpp's server has these routes there too.
EXACT |= {path.removeprefix("/v1"): EXACT[path] for path in ("/v1/chat/completions", "/v1/embeddings", "/v1/models")}
BELOW = [route for route in ROUTES if route.path.endswith("/") and route.path != "/"]


def find(path: str, method: str) -> Route | None:
    """The route of a path: the one with that method, if there is one."""
    routes = EXACT.get(path) or {route.method: route for route in BELOW if path.startswith(route.path)}
    return routes.get("GET" if method == "HEAD" else method) or next(iter(routes.values()), None)


class App:
    """Called by the HTTP server once per request."""

    def __init__(self, state: ServerState):
        self.state = state
        self._limits = BodyLimits(state.settings.max_body_bytes, state.settings.body_timeout_s)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "neither lifespan events nor websockets are switched on"
        request = HttpRequest(scope, receive, send, self._limits)
        request.response_headers["x-request-id"] = request_id()
        route = find(request.path, request.method)
        record = request.record
        try:
            await self._handle(request, route)
        except ClientGone:
            pass
        except Exception as error:
            made = logged_error(error)
            record.error_code = made.code
            if not request.status:
                await request.respond_error(made)
        record.route = route.path if route else record.route
        record.body, record.status, record.ended = request.data, request.status, perf_counter()
        self.state.observers.notify("request_finished", record)

    async def _handle(self, request: HttpRequest, route: Route | None) -> None:
        state = self.state
        state.host_guard.check(request)
        if request.method == "OPTIONS" and "access-control-allow-origin" in request.response_headers:
            return await guard.preflight(request)
        if route and route.is_admin:
            guard.check_admin(request, state.settings.admin_key, state.settings.api_keys)
        elif not (route and route.is_open):
            guard.check_key(request, state.settings.api_keys)
        if route is None:
            message = f"There is no route {request.path[:256]}: /openapi.json lists them."
            raise HttpError(404, message, code="route_not_found")
        if request.method not in (route.method, "HEAD" if route.method == "GET" else ""):
            allowed = ", ".join(EXACT.get(route.path, {}) or [route.method])
            message = f"{request.path} takes {allowed}, not {request.method}."
            raise HttpError(405, message, headers={"allow": allowed})
        if route.method == "POST":
            state.rate_limits.check(guard.presented_key(request) if state.settings.api_keys else request.client)
        return await route.handler(request, state)
