"""How a server ends: nothing new is taken, what runs finishes within a time, and the rest is ended."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tahr.server.http.protocol import BoundedProtocol
from tahr.server.http.serving import UvicornServer
from tahr.server.state.state import ServerState

ENDING_S = 2.0  # time before the end of the drain, or half of it: running requests end, so that the process can
LEAST_ENDING_S = 0.25  # a drain without any time leaves this much for last events
CLOSING_S = 0.6  # time of a process whose connections are cut: batches, engines, threads
MARGIN_S = 0.3  # time before the end of the drain at which the process has ended, on a machine with much to do
CLOSE_S = 2.0  # limit on closing connections where all requests have finished before
LINGER_S = 2.0  # time for clients that were accepted before another process accepts to send what they came for
LOOK_S = 0.05
Work = Callable[[], Coroutine[Any, Any, None]]
log = logging.getLogger("tahr.server")


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """The time of each end, in seconds after the drain has begun."""

    end_s: float  # streams end with what they have, other requests with an error; nothing is answered any more
    cancel_s: float  # requests that still run are cancelled
    abandon_s: float  # whatever else a client waits for is cancelled too, and says so
    cut_s: float  # connections are cut, whoever is at the other end
    exit_s: float  # the process ends, whatever its threads do

    @classmethod
    def of(cls, timeout_s: float) -> "DrainPlan":
        """The plan that keeps to a timeout; one below three seconds is exceeded by what a process needs to close."""
        ending_s = max(LEAST_ENDING_S, min(ENDING_S, timeout_s / 2))
        end_s = max(0.0, timeout_s - ending_s)
        cut_s = end_s + 0.55 * ending_s
        exit_s = max(timeout_s - MARGIN_S, cut_s + CLOSING_S)
        return cls(end_s, end_s + 0.4 * ending_s, end_s + 0.475 * ending_s, cut_s, exit_s)


class Draining:
    """The drain of one server, whoever asked for it: a signal, an admin, or a process that takes its socket over."""

    def __init__(self, state: ServerState, http: UvicornServer, work_on_batches: Work):
        self.exit_process: Callable[[], None] | None = None  # where the process is the server's own
        self._exit: threading.Timer | None = None
        self._state = state
        self._http = http
        self._timeout_s = state.settings.drain_timeout_s
        self._plan = DrainPlan.of(self._timeout_s)
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
        if self.exit_process:
            self._exit = threading.Timer(self._plan.exit_s, self.exit_process)
            self._exit.daemon = True
            self._exit.start()

    def forget_exit(self) -> None:
        """The process has ended in time, or serves again."""
        if self._exit:
            self._exit.cancel()
            self._exit = None

    def take_back(self) -> None:
        """Serve again, where the process that has come in our place is gone; too late, once all has ended."""
        if self._is_final or self._http.should_exit:
            return
        if self._task:
            self._task.cancel()
            self._task = None
        self.forget_exit()
        self._is_succeeded = False
        self._state.admission.is_over = False
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
        now = asyncio.get_running_loop().time
        began = now()
        try:
            async with asyncio.timeout_at(began + self._plan.end_s):
                if self._is_succeeded:
                    await asyncio.sleep(LINGER_S)
                await self._finished()
            self._state.admission.is_over = not self._is_succeeded
        except TimeoutError:
            await self._end_the_rest(began)
        left_s = began + self._plan.exit_s - now()
        self._http.end(within_s=min(CLOSE_S, left_s / 2))

    async def _end_the_rest(self, began: float) -> None:
        self._state.models.close()
        self._state.admission.end_all()
        if not await self._finished_by(began + self._plan.cancel_s):
            self._state.admission.cancel_all()
            if not await self._finished_by(began + self._plan.abandon_s):
                self._http.cancel_tasks()
            await self._finished_by(began + self._plan.cut_s)
        for client in self._http.clients:
            if client.is_busy:  # some send their request for ever, and others never read the reply
                client.transport.abort()

    async def _finished_by(self, deadline: float) -> bool:
        """Whether all requests finish before that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._finished()
                return True
        return False

    async def _finished(self) -> None:
        while any(map(self._is_awaited, self._http.clients)):
            await asyncio.sleep(LOOK_S)

    def _is_awaited(self, client: BoundedProtocol) -> bool:
        return client.is_busy or (self._is_succeeded and client.has_begun)
