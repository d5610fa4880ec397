"""Which requests are in flight, and how those end that take too long."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tahr.server.http.accounts import Account, KeyRing
from tahr.server.http.errors import HttpError
from tahr.server.http.records import InputRecord
from tahr.server.http.request import HttpRequest
from tahr.server.models.pool import ModelPool
from tahr.server.models.registry import MAX_LISTED, ModelRegistry, ServedModel
from tahr.server.state.ledger import Ledger

BATCHES = "(batches)"  # no account has this name


class Admission:
    """Bounds the requests in flight and their time. Only the event loop's thread uses it.

    Where there are several keys, one holds at most as many places as are free: however many requests it sends, there
    are places for the others. Requests of batches take no place, and have no deadline.
    """

    def __init__(
        self,
        models: ModelRegistry,
        pool: ModelPool,
        max_requests: int,
        timeout_s: float | None,
        keys: KeyRing,
        ledger: Ledger,
    ):
        self.active: dict[HttpRequest, asyncio.TimerHandle | None] = {}  # running requests and their deadlines
        self.arriving: set[HttpRequest] = set()  # whose bodies are on their way
        self.is_over = False  # the server ends now: nothing is answered any more
        self._models = models
        self._pool = pool
        self._max_requests = max_requests
        self._timeout_s = timeout_s
        self.ledger = ledger
        self._keys = keys
        self._n_active: Counter[str] = Counter()  # requests in flight of each account

    def admitted(self, request: HttpRequest, model: ServedModel, most_tokens: int = 0) -> "AdmittedRequest":
        """A place among the requests in flight, and a model that stays loaded meanwhile.

        `most_tokens` are those that the request may take, prompt and reply together.
        """
        check_model(request.account, model)
        return AdmittedRequest(self, request, self._pool, model, most_tokens)

    @contextmanager
    def computing(self, request: HttpRequest, model: ServedModel, n_tokens: int) -> Iterator[None]:
        """Such a place for a request that only has inputs, and ends with its client."""
        with self.admitted(request, model, n_tokens), request.cancellable():
            request.record.inputs = InputRecord(request.account.name, model.name, n_tokens)
            yield

    def place(self, request: HttpRequest, model: ServedModel | None = None) -> "AdmittedRequest":
        """A place among the requests in flight, until the deadline if there is one; `model` is to be loaded for it."""
        if model:
            check_model(request.account, model)
        return AdmittedRequest(self, request)

    def begin(self, request: HttpRequest) -> bool:
        """False if it has a place already."""
        self._models.check_ready()
        if request in self.active:
            return False
        if request.on_behalf is None:
            self._check_places(request.account)
        self.active[request] = None if request.on_behalf else self._deadline(request)
        self._n_active[holder_of(request)] += 1
        return True

    def check_may_load(self, request: HttpRequest) -> None:
        """A request of a batch loads no model, for which another may have to go, while clients wait for theirs."""
        if request.on_behalf and len(self.active) > self._n_active[BATCHES]:
            message = "The model is not loaded, and others are at work: try again later."
            raise HttpError(503, message, param="model", headers={"retry-after": "1"})

    def _check_places(self, account: Account) -> None:
        n_clients = len(self.active) - self._n_active[BATCHES]
        n_free = self._max_requests - n_clients
        n_own = self._n_active[account.name] if self._keys.is_shared else 0
        if n_own < max(1, n_free) and n_free > 0:
            return
        message = f"{n_clients} requests are in flight, and this server takes no more: try again later."
        if n_free > 0:
            message = f"{n_own} requests with this key are in flight, and the {n_free} free places are for other keys."
        raise HttpError(503, message, code="overloaded", headers={"retry-after": "1"})

    def end(self, request: HttpRequest) -> None:
        deadline = self.active.pop(request)
        name = holder_of(request)
        self._n_active[name] -= 1
        if not self._n_active[name]:
            del self._n_active[name]
        if deadline:
            deadline.cancel()

    def _deadline(self, request: HttpRequest) -> asyncio.TimerHandle | None:
        if not self._timeout_s:
            return None
        message = f"The request took longer than the {self._timeout_s:g} seconds this server allows."
        late = HttpError(504, message, code="timeout")
        return asyncio.get_running_loop().call_later(self._timeout_s, request.cancel, late)

    def end_revoked(self) -> None:
        """End the requests whose keys are good no longer; a stream says so in its last event."""
        for request in [*self.active, *self.arriving]:
            if not self._keys.holds(request.account):
                message = f"The key {request.account.name} was revoked while its request ran."
                request.cancel(HttpError(401, message, code="key_revoked"))

    def end_all(self) -> None:
        """End all requests in flight: streams with what they have, the others with an error; new ones are refused."""
        self.is_over = True
        for request in [*self.active, *self.arriving]:
            if request.end_early:
                request.end_early()
            else:
                request.cancel(self._models.unavailable())

    def cancel_all(self) -> None:
        """Cancel what is still in flight then."""
        for request in [*self.active, *self.arriving]:
            request.cancel(self._models.unavailable())


@dataclass(slots=True)
class AdmittedRequest:
    """A request's place while it is inside, and the model it uses meanwhile, if it needs one."""

    admission: Admission
    request: HttpRequest
    pool: ModelPool | None = None
    model: ServedModel | None = None
    most_tokens: int = 0
    _is_new: bool = False  # False: whoever gave it the place takes it away
    _uses: bool = False  # likewise the model
    _n_held: int = 0  # tokens of its key for the day

    def __enter__(self) -> None:
        self._is_new = self.admission.begin(self.request)
        try:
            self.admission.ledger.hold(self.request.account, self.most_tokens)
            self._n_held = self.most_tokens
            self._uses = bool(self.pool and self.model and self.pool.begin_use(self.request, self.model))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self.admission.ledger.release(self.request.account, self._n_held)
        if self._uses and self.pool and self.model:
            self.pool.end_use(self.request, self.model)
        if self._is_new:
            self.admission.end(self.request)


def holder_of(request: HttpRequest) -> str:
    """The name under which its place counts."""
    return BATCHES if request.on_behalf else request.account.name


def check_model(account: Account, model: ServedModel) -> None:
    """Refuse a model that the key is not good for."""
    if not account.may_use(model.names):
        allowed = ", ".join(account.models[:MAX_LISTED])
        message = f"This key is not good for the model {model.name}: name one it is good for ({allowed})."
        raise HttpError(403, message, param="model", code="model_not_allowed")
