"""What a row of the table of routes says."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tahr.server.http.request import HttpRequest
from tahr.server.state import ServerState

Handler = Callable[[HttpRequest, ServerState], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path, what it takes and gives (for /openapi.json), and its handler. A path ending in / takes all below it."""

    method: str
    path: str
    handler: Handler
    takes: type | None = None
    gives: type | None = None
    is_open: bool = False  # needs no key
    is_admin: bool = False  # needs the admin's key or, where there is none, a client on this machine

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip()
