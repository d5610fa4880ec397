"""Which requests are in flight, and how those end that take too long."""

import asyncio
from dataclasses import dataclass

from tahr.server.http.errors import HttpError
from tahr.server.http.request import HttpRequest
from tahr.server.models.pool import ModelPool
from tahr.server.models.registry import ModelRegistry, ServedModel


class Admission:
    """Bounds the requests in flight and their time. Only the event loop's thread uses it."""

    def __init__(self, models: ModelRegistry, pool: ModelPool, max_requests: int, timeout_s: float | None):
        self.active: dict[HttpRequest, asyncio.TimerHandle | None] = {}  # running requests and their deadlines
        self.arriving: set[HttpRequest] = set()  # whose bodies are on their way
        self._models = models
        self._pool = pool
        self._max_requests = max_requests
        self._timeout_s = timeout_s

    def admitted(self, request: HttpRequest, model: ServedModel) -> "AdmittedRequest":
        """A place among the requests in flight, and a model that stays loaded meanwhile."""
        return AdmittedRequest(self, request, self._pool, model)

    def place(self, request: HttpRequest) -> "AdmittedRequest":
        """A place among the requests in flight, until the deadline if there is one."""
        return AdmittedRequest(self, request)

    def begin(self, request: HttpRequest) -> bool:
        """False if it has a place already."""
        self._models.check_ready()
        if request in self.active:
            return False
        if len(self.active) >= self._max_requests:
            message = f"{len(self.active)} requests are in flight, and this server takes no more: try again later."
            raise HttpError(503, message, code="overloaded", headers={"retry-after": "1"})
        self.active[request] = self._deadline(request)
        return True

    def end(self, request: HttpRequest) -> None:
        deadline = self.active.pop(request)
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
        for request in [*self.active, *self.arriving]:
            request.cancel(self._models.unavailable())


@dataclass(slots=True)
class AdmittedRequest:
    """A request's place while it is inside, and the model it uses meanwhile, if it needs one."""

    admission: Admission
    request: HttpRequest
    pool: ModelPool | None = None
    model: ServedModel | None = None
    _is_new: bool = False  # False: whoever gave it the place takes it away
    _uses: bool = False  # likewise the model

    def __enter__(self) -> None:
        self._is_new = self.admission.begin(self.request)
        try:
            self._uses = bool(self.pool and self.model and self.pool.begin_use(self.request, self.model))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._uses and self.pool and self.model:
            self.pool.end_use(self.request, self.model)
        if self._is_new:
            self.admission.end(self.request)
