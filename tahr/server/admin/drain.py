"""The route that ends the server in good order."""

from msgspec import Struct

from tahr.server.http.request import HttpRequest
from tahr.server.state.state import ServerState


class DrainReply(Struct, frozen=True):
    """Requests that the server waits for before it ends, and how long at most."""

    status: str
    active_requests: int
    drain_timeout_s: float


async def drain(request: HttpRequest, state: ServerState) -> None:
    """Take nothing new, let requests finish, and end the server, as SIGTERM does."""
    state.drain()
    reply = DrainReply("draining", len(state.admission.active), state.settings.drain_timeout_s)
    await request.respond_json(reply, status=202)
