"""The ASGI application: a table of routes, and what becomes of an error."""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from tahr.server.http import guard
from tahr.server.http.errors import Refusal
from tahr.server.http.internal_errors import told
from tahr.server.http.request import Call, ClientGone, Receive, Send
from tahr.server.observe import status
from tahr.server.openai import bodies, chat, completions, embeddings, openapi, replies
from tahr.server.openai import tokenize as texts
from tahr.server.state import Front

Handler = Callable[[Call], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path, what it takes and gives (for /openapi.json), and who answers. A path ending in / takes all below it."""

    method: str
    path: str
    handler: Handler
    takes: type | None = None
    gives: type | None = None
    is_open: bool = False  # needs no key

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip()


async def openapi_document(call: Call) -> None:
    """This API, described by the tables it is made of."""
    await call.json(openapi.document(ROUTES))


ROUTES = [
    Route("POST", "/v1/chat/completions", chat.chat, bodies.ChatBody, replies.ChatReply),
    Route("POST", "/v1/completions", completions.complete, bodies.CompletionBody, replies.TextReply),
    Route("POST", "/v1/embeddings", embeddings.embed, bodies.EmbeddingBody, replies.EmbeddingReply),
    Route("GET", "/v1/models", status.models, gives=replies.ModelList),
    Route("GET", "/v1/models/", status.model, gives=replies.ModelCard),
    Route("POST", "/tokenize", texts.tokenize, bodies.TokenizeBody, replies.TokenizeReply),
    Route("POST", "/detokenize", texts.detokenize, bodies.DetokenizeBody, replies.DetokenizeReply),
    Route("POST", "/apply-template", chat.apply_template, bodies.TemplateBody, replies.TemplateReply),
    Route("GET", "/health", status.health, gives=replies.Health, is_open=True),
    Route("GET", "/ready", status.ready, is_open=True),
    Route("GET", "/metrics", status.metrics),
    Route("GET", "/version", status.version, gives=replies.Version),
    Route("GET", "/openapi.json", openapi_document),
    Route("GET", "/", status.page),
]
EXACT = {route.path: route for route in ROUTES}
BELOW = [route for route in ROUTES if route.path.endswith("/") and route.path != "/"]


def find(path: str) -> Route | None:
    return EXACT.get(path) or next((route for route in BELOW if path.startswith(route.path)), None)


class App:
    """Called by the HTTP server once per request."""

    def __init__(self, front: Front):
        self.front = front

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "neither lifespan events nor websockets are switched on"
        began = perf_counter()
        call = Call(self.front, scope, receive, send)
        route = find(call.path)
        try:
            await self._answer(call, route)
        except ClientGone:
            pass
        except Exception as error:
            await self._refuse(call, told(error))
        self._count(call, route)
        if self.front.tracer:
            self.front.tracer.finish(call, began)
        if self.front.bundles:
            self.front.bundles.finish(call, began)

    async def _answer(self, call: Call, route: Route | None) -> None:
        guard.check_origin(call)
        if call.method == "OPTIONS" and "access-control-allow-origin" in call.more_headers:
            return await guard.preflight(call)
        if not (route and route.is_open):
            guard.check_key(call)
        if route is None:
            raise Refusal(404, f"There is no route {call.path}: /openapi.json lists them.", code="route_not_found")
        if call.method not in (route.method, "HEAD" if route.method == "GET" else ""):
            allowed = {"allow": route.method}
            raise Refusal(405, f"{call.path} takes {route.method}, not {call.method}.", headers=allowed)
        if route.method == "POST":
            guard.check_rate(call)
        return await route.handler(call)

    async def _refuse(self, call: Call, refusal: Refusal) -> None:
        if not call.status:
            call.more_headers.setdefault("x-request-id", f"req-{os.urandom(12).hex()}")  # clients quote it
            await call.refuse(refusal)

    def _count(self, call: Call, route: Route | None) -> None:
        labels = (("route", route.path if route else "other"), ("status", f"{call.status // 100}xx"))
        self.front.measures.http.add(labels)
