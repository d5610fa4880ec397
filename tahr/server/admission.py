"""Which requests are in flight, and how those end that take too long."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tahr.server.http.errors import HttpError
from tahr.server.http.request import HttpRequest
from tahr.server.model_pool import ModelPool
from tahr.server.models import ModelRegistry, ServedModel


class Admission:
    """Bounds the requests in flight and their time. Only the event loop's thread uses it."""

    def __init__(self, models: ModelRegistry, pool: ModelPool, max_requests: int, timeout_s: float | None):
        self.active: set[HttpRequest] = set()
        self._models, self._pool, self._max_requests, self._timeout_s = models, pool, max_requests, timeout_s

    @contextmanager
    def admitted(self, request: HttpRequest, model: ServedModel) -> Iterator[None]:
        """A place among the requests in flight, and a model that stays loaded meanwhile."""
        with self.place(request), self._pool.in_use(request, model):
            yield

    @contextmanager
    def place(self, request: HttpRequest) -> Iterator[None]:
        """A place among the requests in flight, until the deadline if there is one."""
        self._models.check_ready()
        if request in self.active:
            yield
            return
        if len(self.active) >= self._max_requests:
            message = f"{len(self.active)} requests are in flight, and this server takes no more: try again later."
            raise HttpError(503, message, code="overloaded", headers={"retry-after": "1"})
        self.active.add(request)
        deadline = self._deadline(request)
        try:
            yield
        finally:
            self.active.discard(request)
            if deadline:
                deadline.cancel()

    def _deadline(self, request: HttpRequest) -> asyncio.TimerHandle | None:
        if not self._timeout_s:
            return None
        message = f"The request took longer than the {self._timeout_s:g} seconds this server allows."
        late = HttpError(504, message, code="timeout")
        return asyncio.get_running_loop().call_later(self._timeout_s, request.cancel, late)

    def cancel_all(self) -> None:
        """End all requests in flight: the server is shutting down."""
        for request in list(self.active):
            request.cancel(self._models.unavailable())
