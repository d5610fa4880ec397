"""The place of a running server, in which others find it and another may come."""

import asyncio
import logging
from contextlib import suppress

from tahr.server.http.listening import Listener
from tahr.server.http.serving import UvicornServer
from tahr.server.models.registry import Phase
from tahr.server.state.draining import Draining
from tahr.server.state.state import ServerState
from tahr.server.status.servers import Announcement
from tahr.server.takeover.giving import Giving
from tahr.server.takeover.messages import IS_HERE, files_of

log = logging.getLogger("tahr.server")


class Succession:
    """A server gives its place away in a takeover, and takes it back where that fails."""

    def __init__(self, state: ServerState, http: UvicornServer, draining: Draining, announcement: Announcement):
        self._state = state
        self._http = http
        self._draining = draining
        self._announcement = announcement
        self._listener: Listener | None = None
        self._giving: asyncio.Task[None] | None = None

    def enter(self, listener: Listener) -> None:
        """Be found from now on."""
        self._listener = listener
        self._announcement.show(listener.address)
        if not (IS_HERE and self._announcement.is_shown):
            return
        try:
            giving = Giving(self._announcement.socket_path, files_of(self._state.settings), self)
        except OSError as error:
            log.warning("this server cannot be taken over: %s", error.strerror)
        else:
            self._giving = asyncio.create_task(giving.run())

    async def leave(self) -> None:
        """The server has ended."""
        if self._giving:
            self._giving.cancel()
            with suppress(asyncio.CancelledError):
                await self._giving
        self._announcement.hide()

    # ---- what `Giving` asks for -------------------------------------------------------------------------------

    def refusal(self, is_cold: bool) -> str:
        assert self._listener
        if self._listener.outlives_us:
            return "systemd holds its port, so that a restart of its unit loses no client either"
        if self._state.is_draining or self._state.models.phase is not Phase.READY:
            return "it is loading or ending: try again later"
        if not is_cold and any(model.engine.n_device_bytes for model in self._state.models.loaded):
            return "its models are on a GPU, whose memory may not be enough for two: use --takeover=cold"
        return ""

    def pause(self) -> int:
        assert self._listener
        self._http.stop_accepting()
        return self._listener.socket.fileno()

    def resume(self) -> None:
        assert self._listener
        if not self._announcement.is_shown:
            self._announcement.show(self._listener.address)
        self._draining.take_back()

    def hand_over(self) -> None:
        self._announcement.hide()
        self._draining.begin(is_succeeded=True)
