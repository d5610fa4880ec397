"""A server's life: bind, load, serve, shut down."""

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from tahr.server.app import App
from tahr.server.batches.service import work_on_batches
from tahr.server.draining import Draining, closing_s
from tahr.server.http.errors import HttpError
from tahr.server.http.event_loop import loop_factory
from tahr.server.http.listening import bind
from tahr.server.http.serving import UvicornServer, uvicorn_config
from tahr.server.models.pool import on_daemon_thread, start_failure, warm_up
from tahr.server.models.registry import Phase, ServedModel
from tahr.server.observe.throughput_log import report_throughput
from tahr.server.state.settings import Settings
from tahr.server.state.state import MakeModel, ServerState

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# How long the event loop may keep the engine's thread from running, and the other way round: Python's 5 ms are several
# steps of a GPU.
SWITCH_S = 0.0005
FLUSH_S = 5.0  # time between looks at responses that could not be written
LOOK_S = 1.0  # time between looks at the keys of the state

Load = Callable[[], list[ServedModel]]
Announce = Callable[[str, list[ServedModel]], None]


class HttpServer:
    """One server from start to end. `load` runs on a thread of its own while requests already get a 503."""

    def __init__(self, settings: Settings, load: Load, announce: Announce, make_model: MakeModel | None = None):
        self.settings = settings
        self.state = ServerState(settings, make_model)
        self._load = load
        self._announce = announce
        self._listener = bind(settings.host, settings.port)
        timeout_s = settings.drain_timeout_s
        config = uvicorn_config(App(self.state), settings.reader_timeout_s, closing_s(timeout_s))
        self._uvicorn = UvicornServer(config, self._listener.socket)
        self._draining = Draining(self.state, self._uvicorn)
        self.state.drain = self.drain
        self._switch_s = sys.getswitchinterval()
        self._signal = 0
        self._loader: threading.Thread | None = None
        self._batches: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where clients find it."""
        return self._listener.address

    def run(self) -> int:
        """Serve until a signal comes or somebody asks for the end, and return the exit code."""
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            code = runner.run(self.serve())
        gc.collect()  # the models, before the interpreter takes their modules away
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
        serving = asyncio.create_task(self._uvicorn.serve())
        opening = asyncio.create_task(self._open())
        logging = asyncio.create_task(report_throughput(self.state.models, self.settings.log_interval_s))
        flushing = asyncio.create_task(flush_responses(self.state))
        looking = asyncio.create_task(follow_keys(self.state))
        self._batches = asyncio.create_task(work_on_batches(self.state, App))
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
            self._batches.cancel()
            await asyncio.wait([self._batches])  # models must not go before their requests
            await self._close()
            self._forget_signals(loop)
        return 128 + self._signal if self._signal else 0

    def drain(self) -> None:
        """Take nothing new, let requests finish within `drain_timeout_s`, end the rest, and then the server."""
        if self._batches:
            self._batches.cancel()  # the next server goes on with them
        self._draining.begin(is_succeeded=self._listener.outlives_us)

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
            if self.state.models.phase is not Phase.CLOSING:
                raise start_failure(error, len(models)) from None
        if self.state.models.phase is Phase.CLOSING:
            return  # a signal has come meanwhile
        gc.collect()
        gc.freeze()  # all of this stays, so the collector need not look at it again
        sys.setswitchinterval(SWITCH_S)
        self.state.models.open()
        self._announce(self.address, models)

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
