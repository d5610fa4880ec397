"""A row of the table of routes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tahr.server.http.errors import Envelope, ErrorReply
from tahr.server.http.request import HttpRequest
from tahr.server.state.state import ServerState

Handler = Callable[[HttpRequest, ServerState], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path, what it takes and gives (for /openapi.json), and its handler.

    A path that ends in / takes all paths below it; `{id}` inside a path stands for one segment.
    """

    method: str
    path: str
    handler: Handler
    takes: type | None = None
    gives: type | None = None
    status: int = 200  # status of replies that are not errors
    is_open: bool = False  # needs no key
    is_admin: bool = False  # needs the admin's key or, where there is none, a client on this machine
    errors: type[ErrorReply] = Envelope  # the shape of its errors
    id_header: str = ""  # a header that its clients look for the id of a request in, beside x-request-id
    aliases: tuple[str, ...] = ()  # other paths with the same handler
    takes_form: bool = False  # its body is multipart/form-data, and may be as large as a recording
    streams: str = "text/event-stream"  # the content type of streamed replies
    socket: Handler | None = None  # takes a client that offers to speak WebSocket

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip()

    @property
    def ends(self) -> tuple[str, str]:
        """Beginning and end of a path with a variable part between them."""
        prefix, _, suffix = self.path.partition("{id}")
        return prefix, suffix
