"""How a server ends: nothing new is taken, what runs finishes within a time, and the rest is ended."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from tahr.server.http.protocol import BoundedProtocol
from tahr.server.http.serving import UvicornServer
from tahr.server.state.state import ServerState

ENDING_S = 1.0  # time before the end of the drain, or a fifth of it: running requests end, so that the process can
CLOSE_S = 2.0  # time after the drain for what is still being sent
LINGER_S = 2.0  # time for clients that were accepted before another process accepts to send what they came for
LOOK_S = 0.05
Work = Callable[[], Coroutine[Any, Any, None]]
log = logging.getLogger("tahr.server")


class Draining:
    """The drain of one server, whoever asked for it: a signal, an admin, or a process that takes its socket over."""

    def __init__(self, state: ServerState, http: UvicornServer, work_on_batches: Work):
        self._state = state
        self._http = http
        self._timeout_s = state.settings.drain_timeout_s
        self._task: asyncio.Task[None] | None = None
        self._is_succeeded = False  # another process accepts the clients that come
        self._work_on_batches = work_on_batches
        self._batches: asyncio.Task[None] | None = None
        self._is_final = False  # somebody has asked for the end of this process

    def begin(self, is_succeeded: bool = False) -> None:
        """Take nothing new from now on; all but the first call change nothing.

        Where another process accepts new clients, those that were accepted here get their reply here: nobody else can
        give it. Otherwise requests that come are told that the server ends.
        """
        self._is_final = self._is_final or not is_succeeded
        if self._task:
            return
        self._is_succeeded = is_succeeded
        self._state.is_draining = True
        if self._batches:
            self._batches.cancel()  # the next server goes on with them
        if is_succeeded:
            self._http.stop_accepting()
        else:
            self._state.models.close()
        n_active = len(self._state.admission.active)
        log.info("draining active_requests=%d timeout_s=%g", n_active, self._timeout_s)
        self._task = asyncio.create_task(self._run())

    def take_back(self) -> None:
        """Serve again, where the process that has come in our place is gone; too late, once all has ended."""
        if self._is_final or self._http.should_exit:
            return
        if self._task:
            self._task.cancel()
            self._task = None
        self._is_succeeded = False
        self._state.is_draining = False
        self._state.models.open()
        self.start_batches()
        self._http.start_accepting()
        log.info("serving again")

    def start_batches(self) -> None:
        """Work on them while the server serves."""
        if self._batches is None or self._batches.cancelling():
            self._batches = asyncio.create_task(self._work_after(self._batches))

    async def _work_after(self, before: "asyncio.Task[None] | None") -> None:
        if before:
            await asyncio.wait([before])
        await self._work_on_batches()

    async def end_batches(self) -> None:
        """Models must not go before the requests of batches."""
        if self._batches:
            self._batches.cancel()
            await asyncio.wait([self._batches])

    async def _run(self) -> None:
        running = running_s(self._timeout_s)
        try:
            async with asyncio.timeout(running):
                await self._finished()
        except TimeoutError:
            self._state.models.close()
            self._state.admission.end_all()
            with suppress(TimeoutError):
                async with asyncio.timeout((self._timeout_s - running) / 2):
                    await self._finished()
            self._state.admission.cancel_all()
            self._leave_clients_that_do_not_read()
        self._http.should_exit = True

    async def _finished(self) -> None:
        if self._is_succeeded:
            await asyncio.sleep(LINGER_S)
        while any(map(self._is_awaited, self._http.clients)):
            await asyncio.sleep(LOOK_S)

    def _is_awaited(self, client: BoundedProtocol) -> bool:
        return client.is_busy or (self._is_succeeded and client.has_begun)

    def _leave_clients_that_do_not_read(self) -> None:
        # Their responses are whole, so that there is nothing to cancel.
        for client in self._http.clients:
            if client.flow.write_paused:
                client.transport.abort()


def running_s(timeout_s: float) -> float:
    """How long running requests may go on."""
    return timeout_s - min(ENDING_S, timeout_s / 5)


def closing_s(timeout_s: float) -> float:
    """How long connections may take to close after that."""
    return timeout_s - running_s(timeout_s) + CLOSE_S
