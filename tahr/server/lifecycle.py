"""A server's life: bind, load, serve, shut down."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

from tahr.server.app import App
from tahr.server.batches.service import work_on_batches
from tahr.server.http.errors import HttpError
from tahr.server.http.event_loop import loop_factory
from tahr.server.http.listening import Listener, bind
from tahr.server.http.serving import UvicornServer, uvicorn_config
from tahr.server.models.pool import on_daemon_thread, start_failure, warm_up
from tahr.server.models.registry import Phase, ServedModel
from tahr.server.observe.throughput_log import report_throughput
from tahr.server.state.draining import Draining
from tahr.server.state.settings import Settings
from tahr.server.state.state import MakeModel, ServerState
from tahr.server.status.servers import Announcement
from tahr.server.takeover.succession import Succession
from tahr.server.takeover.taking import Taking

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# How long the event loop may keep the engine's thread from running, and the other way round: Python's 5 ms are several
# steps of a GPU.
SWITCH_S = 0.0005
FLUSH_S = 5.0  # time between looks at responses that could not be written
LOOK_S = 1.0  # time between looks at the keys of the state

log = logging.getLogger("tahr.server")
Load = Callable[[], list[ServedModel]]
Announce = Callable[[str, list[ServedModel]], None]


class HttpServer:
    """One server from start to end. `load` runs on a thread of its own while requests already get a 503.

    One that takes over has nothing to listen on until its models are loaded: another server answers meanwhile.
    """

    def __init__(
        self,
        settings: Settings,
        load: Load,
        announce: Announce,
        make_model: MakeModel | None = None,
        announcement: Announcement | None = None,  # None: it can be neither found nor taken over
        taking: Taking | None = None,
    ):
        self.settings = settings
        self.state = ServerState(settings, make_model)
        self._load = load
        self._announce = announce
        self._listener = None if taking else bind(settings.host, settings.port)
        self._taking = taking
        self._uvicorn = UvicornServer(uvicorn_config(App(self.state), settings.reader_timeout_s))
        self._draining = Draining(self.state, self._uvicorn, partial(work_on_batches, self.state, App))
        self._succession = Succession(self.state, self._uvicorn, self._draining, announcement) if announcement else None
        self.state.drain = self.drain
        self._switch_s = sys.getswitchinterval()
        self._signal = 0
        self._loader: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Where clients find it."""
        if self._listener:
            return self._listener.address
        assert self._taking
        return self._taking.address

    def run(self) -> int:
        """Serve until a signal comes or somebody asks for the end, and return the exit code."""
        self._draining.exit_process = self._exit
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                code = runner.run(self.serve())
        finally:
            self._draining.forget_exit()
        if self._is_loading:
            # A thread is inside native code: the interpreter must not be taken down under it.
            sys.stderr.flush()
            os._exit(code)
        return code

    @property
    def _is_loading(self) -> bool:
        return self.state.pool.is_in_native_code or (self._loader is not None and self._loader.is_alive())

    async def serve(self) -> int:
        """Serve inside a running event loop."""
        loop = asyncio.get_running_loop()
        self._listen_to_signals(loop)
        self._may_serve = asyncio.Event()
        if self._listener:
            self._listen(self._listener)
        serving = asyncio.create_task(self._serve_http())
        opening = asyncio.create_task(self._open())
        logging = asyncio.create_task(report_throughput(self.state.models, self.settings.log_interval_s))
        flushing = asyncio.create_task(flush_responses(self.state))
        looking = asyncio.create_task(follow_keys(self.state))
        self._draining.start_batches()
        try:
            await asyncio.wait({serving, opening}, return_when=asyncio.FIRST_COMPLETED)
            if opening.done() and opening.exception():
                self.drain()
            await serving
            if opening.done():
                opening.result()
        finally:
            opening.cancel()
            logging.cancel()
            flushing.cancel()
            looking.cancel()
            await self._draining.end_batches()
            if self._succession:
                await self._succession.leave()
            await self._close()
            self._forget_signals(loop)
        return self._exit_code

    @property
    def _exit_code(self) -> int:
        return 128 + self._signal if self._signal else 0

    def _exit(self) -> None:
        """The end of a process whose time is over, on a thread of its own."""
        busy = sorted(each.name for each in threading.enumerate() if not each.daemon)
        log.error("the drain timeout is over: the process ends although threads are at work: %s", ", ".join(busy))
        sys.stderr.flush()
        os._exit(self._exit_code)

    def drain(self) -> None:
        """Take nothing new, let requests finish within `drain_timeout_s`, end the rest, and then the server."""
        self._draining.begin(is_succeeded=bool(self._listener and self._listener.outlives_us))
        self._may_serve.set()

    def _listen(self, listener: Listener) -> None:
        self._listener = listener
        self._uvicorn.listen(listener.socket)
        if self._succession:
            self._succession.enter(listener)
        self._may_serve.set()

    async def _serve_http(self) -> None:
        await self._may_serve.wait()
        await self._uvicorn.serve()

    # ---- opening ----------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        made, self._loader = on_daemon_thread(self._load)
        models = await made
        for model in models:
            if model.loaded_engine:
                await warm_up(model.engine)
        self.state.models.put(models)
        try:
            await self.state.pool.open()
        except HttpError as error:
            if not self._is_closing():
                raise start_failure(error, len(models)) from None
        if self._is_closing():
            return
        gc.collect()
        gc.freeze()  # all of this stays, so the collector need not look at it again
        sys.setswitchinterval(SWITCH_S)
        taken = await asyncio.to_thread(self._taking.take) if self._taking else None
        if self._is_closing():
            return
        self.state.models.open()
        if taken:
            self._listen(taken)
        self._announce(self.address, models)

    def _is_closing(self) -> bool:
        """Whether somebody has asked for the end meanwhile."""
        return self.state.models.phase is Phase.CLOSING

    # ---- closing ----------------------------------------------------------------------------------------------

    def _listen_to_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                loop.add_signal_handler(number, self._on_signal, number)

    def _forget_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """Restore the signals, which the loop would not: the process may go on without the server."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int, frame: FrameType | None = None) -> None:
        if self._signal:
            os._exit(128 + number)
        self._signal = number
        self.drain()

    async def _close(self) -> None:
        await self.state.pool.close()
        self.state.close()
        gc.unfreeze()
        sys.setswitchinterval(self._switch_s)
        self._load = list  # the function may hold what it has loaded


async def flush_responses(state: ServerState) -> None:
    """Write responses that could not be written when they were made."""
    while True:
        await asyncio.sleep(FLUSH_S)
        state.responses.flush()


async def follow_keys(state: ServerState) -> None:
    """Let keys that are added or revoked count at once, and keep what was used."""
    while True:
        await asyncio.sleep(LOOK_S)
        state.look_at_keys()
        state.write_usage()
