"""The ASGI application: which route a request goes to, who may use it, and what becomes of an error."""

import asyncio
from collections.abc import MutableMapping
from dataclasses import replace
from time import perf_counter
from typing import Any

from tahr.backends.host.memory import host_total_bytes
from tahr.server.http import guard
from tahr.server.http.errors import HttpError, logged_error, request_id
from tahr.server.http.request import BodyLimits, BodyMemory, ClientGone, HttpRequest, Receive, Send
from tahr.server.models.registry import UnloadedModel
from tahr.server.routes import methods_of, relative_of
from tahr.server.state.route import Route
from tahr.server.state.state import ServerState

BODY_SHARE = 8  # bodies take at most this part of the machine's memory


class App:
    """Called by the HTTP server once per request."""

    def __init__(self, state: ServerState):
        self.state = state
        settings = state.settings
        n_with_images = max(settings.max_body_bytes, settings.max_image_body_bytes)
        n_with_recording = max(settings.max_body_bytes, settings.max_audio_body_bytes)
        memory = BodyMemory(max(n_with_images, n_with_recording, host_total_bytes() // BODY_SHARE))
        arriving = state.admission.arriving
        self._limits = BodyLimits(settings.max_body_bytes, settings.body_timeout_s, memory, arriving)
        self._limits_with_images = replace(self._limits, max_bytes=n_with_images)
        self._limits_of_forms = replace(self._limits, max_bytes=n_with_recording)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "neither lifespan events nor websockets are switched on"
        methods = methods_of(scope["path"])
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route = methods.get(method) or next(iter(methods.values()), None)
        request = HttpRequest(scope, receive, send, self._body_limits(route))
        request.response_headers["x-request-id"] = request_id()
        if self.state.is_draining:
            request.response_headers["connection"] = "close"
        if shape := route or relative_of(request.path):
            request.error_reply = shape.errors
            if shape.id_header:
                request.response_headers[shape.id_header] = request.response_headers["x-request-id"]
        record = request.record
        try:
            await self._handle(request, route)
        except ClientGone:
            pass
        except asyncio.CancelledError:  # the task outlasts the drain
            if request.status:
                raise
            await request.respond_error(self.state.models.unavailable())
        except Exception as error:
            made = logged_error(error)
            record.error_code = made.code
            if not request.status:
                await request.respond_error(made)
        finally:
            request.release_body()
        record.route = route.path if route else record.route
        record.body = request.data
        record.status = request.status
        record.ended = perf_counter()
        self.state.observers.notify("request_finished", record)

    def _body_limits(self, route: Route | None) -> BodyLimits:
        if route and route.takes_form:
            return self._limits_of_forms
        reads_images = any(model.engine.inputs.reads_images for model in self.state.models.loaded)
        return self._limits_with_images if reads_images else self._limits

    async def _handle(self, request: HttpRequest, route: Route | None) -> None:
        if request.on_behalf and route:
            return await self._respond(request, route)
        state = self.state
        if state.admission.is_over:  # nobody waits for its body
            raise state.models.unavailable()
        state.host_guard.check(request)
        if request.method == "OPTIONS" and "access-control-allow-origin" in request.response_headers:
            return await guard.preflight(request)
        if route and route.is_admin:
            guard.check_admin(request, state.settings.admin_key, state.keys)
        elif not (route and route.is_open):
            guard.check_key(request, state.keys)
        if route is None:
            message = f"There is no route {request.path[:256]}: /openapi.json lists them."
            raise HttpError(404, message, code="route_not_found")
        if request.method not in (route.method, "HEAD" if route.method == "GET" else ""):
            allowed = ", ".join(methods_of(request.path))
            message = f"{request.path} takes {allowed}, not {request.method}."
            raise HttpError(405, message, headers={"allow": allowed})
        if route.method == "POST":
            account = request.account
            client = request.client if state.keys.is_open else account.name
            state.rate_limits.check(client, account.requests_per_minute)
        if request.offer and request.offer.protocol == "websocket" and route.socket:
            return await route.socket(request, state)
        return await self._respond(request, route)

    async def _respond(self, request: HttpRequest, route: Route) -> None:
        """A handler that meets a model that is not loaded has not sent anything yet: it is run again, once it is."""
        state = self.state
        began = perf_counter()
        try:
            return await route.handler(request, state)
        except UnloadedModel as missing:
            model = missing.model
        state.admission.check_may_load(request)
        with state.admission.place(request, model):
            async with state.pool.loaded(request, model):
                request.load_s = perf_counter() - began
                return await route.handler(request, state)
