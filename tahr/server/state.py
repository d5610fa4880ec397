"""What a running server holds: its settings, its models, its counters."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from tahr.config import SamplingParams, precedence
from tahr.errors import ConfigError
from tahr.server.engine_port import ServedEngine
from tahr.server.http.errors import Refusal
from tahr.server.http.guard import rate_limits
from tahr.server.http.request import Call
from tahr.server.observe.request_dumps import open_bundles
from tahr.server.observe.server_metrics import Measures
from tahr.server.observe.tracing import open_tracer
from tahr.server.sessions import Sessions
from tahr.server.settings import Settings

T = TypeVar("T")

N_TEXT_THREADS = 2  # tokenising and templates; the number follows nothing a client can say
# Handing work to a thread costs more than a short prompt does. Where one turns out to take long, the next go there.
SHORT_BYTES = 2048
SHORT_S = 0.005
N_WARY = 100
STUCK_AFTER_S = 60.0


class Phase(Enum):
    """Where a server is in its life."""

    LOADING = "loading"
    READY = "ok"
    CLOSING = "closing"


@dataclass(slots=True)
class Served:
    """A model and the names it answers to, the first of which it is called by."""

    names: tuple[str, ...]
    engine: ServedEngine
    created: int = field(default_factory=lambda: int(time.time()))
    defaults: SamplingParams = field(
        default_factory=SamplingParams
    )  # where a request says nothing; complete when opened
    last_steps: int = -1  # what the engine's step counter said when it last moved
    moved_at: float = 0.0

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def well(self) -> bool:
        """Whether a request would get a token: the engine lives, and has not stood still with work to do."""
        snapshot, now = self.engine.snapshot(), time.monotonic()
        if snapshot.steps != self.last_steps or not snapshot.requests_running:
            self.last_steps, self.moved_at = snapshot.steps, now
        return self.engine.alive and now - self.moved_at < STUCK_AFTER_S


def sessions_of(settings: Settings, measures: Measures) -> Sessions | None:
    if settings.session_cache == "off":
        return None
    most = settings.session_max_entries, settings.session_max_tokens
    events = {
        "hit": measures.session_hits,
        "miss": measures.session_misses,
        "evicted": measures.session_evictions,
        "dropped_message": measures.session_cuts,
    }
    return Sessions(*most, events, (measures.sessions, measures.session_tokens))


class Front:
    """Shared by all calls; only the event loop's thread touches it."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.phase = Phase.LOADING
        self.began = time.monotonic()
        self.models: list[Served] = []
        self.measures = Measures()
        self.rate_limits = rate_limits(settings)
        self.sessions = sessions_of(settings, self.measures)
        self.tracer = open_tracer(settings)
        self.bundles = open_bundles(settings)
        self.active: set[Call] = set()
        self._n_wary = 0  # how many of the next short texts go to a thread all the same
        self._pool = ThreadPoolExecutor(N_TEXT_THREADS, thread_name_prefix="tahr-text")

    def open(self, models: list[Served]) -> None:
        """From here on requests are answered."""
        taken: set[str] = set()
        for model in models:
            model.defaults = precedence(model.defaults, self.settings.sampling, model.engine.sampling_defaults)
            for name in model.names:
                if name in taken:
                    raise ConfigError(f"Two models are called {name}: name one of them with --model NAME=MODEL.")
                taken.add(name)
        self.models = models
        self.phase = Phase.READY

    @property
    def ready(self) -> bool:
        return self.phase is Phase.READY and all(model.well for model in self.models)

    def find(self, name: str | None) -> Served:
        """The model of that name, or the first if none is named."""
        if self.phase is not Phase.READY:
            raise self.not_now()
        if name is None or name == "":
            return self.models[0]
        for model in self.models:
            if name in model.names:
                return model
        served = ", ".join(name for model in self.models for name in model.names)
        message = f"The model {name!r} is not served here: there is {served}."
        raise Refusal(404, message, param="model", code="model_not_found")

    def not_now(self) -> Refusal:
        """Why no request is taken."""
        what = "still loading" if self.phase is Phase.LOADING else "shutting down"
        return Refusal(
            503, f"The server is {what}: try again later.", code=self.phase.value, headers={"retry-after": "2"}
        )

    async def beside(self, work: Callable[[], T], n_bytes: int = SHORT_BYTES + 1) -> T:
        """Run something without holding up the streams: on a thread of its own, unless what it reads is short."""
        if n_bytes > SHORT_BYTES or self._n_wary or self.sessions:  # a session is longer than what is sent
            self._n_wary = max(0, self._n_wary - 1)
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        began = time.thread_time()
        try:
            return work()
        finally:
            self._n_wary = N_WARY if time.thread_time() - began > SHORT_S else 0

    @contextmanager
    def admitted(self, call: Call) -> Iterator[None]:
        """A place among the requests in flight, until the deadline if there is one."""
        if self.phase is not Phase.READY:
            raise self.not_now()
        if len(self.active) >= self.settings.max_requests:
            self.measures.rejected.add(())
            message = f"{len(self.active)} requests are in flight, and this server takes no more: try again later."
            raise Refusal(503, message, code="overloaded", headers={"retry-after": "1"})
        self.active.add(call)
        deadline = self._deadline(call)
        try:
            yield
        finally:
            self.active.discard(call)
            if deadline:
                deadline.cancel()

    def _deadline(self, call: Call) -> asyncio.TimerHandle | None:
        limit_s = self.settings.request_timeout_s
        if not limit_s:
            return None
        late = Refusal(504, f"The request took longer than the {limit_s:g} seconds this server allows.", code="timeout")
        return asyncio.get_running_loop().call_later(limit_s, call.interrupt, late)

    def close_door(self) -> None:
        """Take no more requests."""
        self.phase = Phase.CLOSING

    def end_all(self) -> None:
        """Running requests end at their next token."""
        for call in list(self.active):
            call.interrupt(self.not_now())

    def close(self) -> None:
        """Let go of models and threads."""
        self.models = []
        if self.tracer:
            self.tracer.close()
        if self.bundles:
            self.bundles.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
