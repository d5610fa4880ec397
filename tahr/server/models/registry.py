"""The models a server answers with, and whether it answers at all."""

import asyncio
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from tahr import __version__
from tahr.config import SamplingParams, precedence
from tahr.errors import ConfigError
from tahr.server.http.errors import HttpError
from tahr.server.models.engine_port import ServedEngine

if TYPE_CHECKING:
    from tahr.loading.model_facts import ModelFacts

# The version as one number: clients of llama.cpp read a fingerprint as `b` and a build, a dash, and hexadecimal digits.
BUILD = int("".join(f"{int(part):02}" for part in __version__.split(".")[:3]))
MAX_NAMES = 64  # names of one model
MAX_LISTED = 32  # names that an error lists
STALLED_AFTER_S = 60.0  # time without a step while requests run


class Phase(Enum):
    """Where a server is in its life."""

    LOADING = "loading"
    READY = "ok"
    CLOSING = "closing"


class Health(Enum):
    """How an engine is."""

    OK = "ok"
    BUSY = "busy"  # a step takes long
    FAILING = "failing"  # the thread has ended or does nothing while requests run, or the weights have changed


class ModelLoader(Protocol):
    """How a model gets into memory. Its methods run on threads of their own."""

    @property
    def source(self) -> str:
        """Name by which the model is fetched and deleted."""

    def n_bytes(self) -> int:
        """About how much memory it takes; fetches its files if they are not on this machine."""

    def load(self) -> ServedEngine: ...
    def facts(self) -> "ModelFacts":
        """Facts from the files of the model."""


@dataclass(slots=True)
class ModelRest:
    """Sleep of a model that is loaded."""

    asleep: bool = False
    n_bytes: int = 0  # memory that it has given back
    task: "asyncio.Task[None] | None" = None  # puts it to sleep once its requests are finished
    due: asyncio.TimerHandle | None = None  # begins that


@dataclass(slots=True, eq=False)
class ServedModel:
    """A model and the names it answers to; the first is the one in metrics and logs. It may be loaded or not."""

    names: tuple[str, ...]
    loaded_engine: ServedEngine | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    sampling: SamplingParams = field(default_factory=SamplingParams)  # settings in the model's files
    loader: ModelLoader | None = None  # None: it stays as it is
    defaults: SamplingParams = field(default_factory=SamplingParams)  # defaults of its requests
    context_size: int | None = None  # None: it was not loaded yet
    n_bytes: int | None = None  # memory, where it is known
    fingerprint: str = ""  # changes when the same seed may give another text
    facts: "ModelFacts | None" = None  # once somebody has asked
    on_demand: bool = False  # not loaded at the start, even if there is no budget
    # Adapters that were added while it ran, with path and scale, or removed (None), by name.
    changed_adapters: dict[str, tuple[str, float] | None] = field(default_factory=dict)
    # The pool's own fields, used by the event loop's thread alone.
    users: set[object] = field(default_factory=set)  # requests that use it now
    waiting: set[object] = field(default_factory=set)  # requests that wait until it is loaded
    load_task: "asyncio.Task[None] | None" = None
    unload_task: "asyncio.Task[None] | None" = None
    used_at: float = 0.0
    keep_alive_s: float | None = None  # time it stays without requests; None: for ever
    expiry: asyncio.TimerHandle | None = None
    rest: ModelRest = field(default_factory=ModelRest)
    expires_at: float = 0.0  # time of unloading, if it has one
    _n_steps: int = -1  # the engine's counter when it last moved
    _moved_at: float = 0.0
    _cpu_s: float = 0.0  # processor time of the engine's thread at the last look

    def attach(self, engine: ServedEngine, server_defaults: SamplingParams) -> None:
        """Take over a loaded engine."""
        facts = f"{engine.name}/{engine.backend_summary}/{engine.context_size}"
        self.fingerprint = f"b{BUILD}-{zlib.crc32(facts.encode()):08x}"
        self.defaults = precedence(self.sampling, server_defaults, engine.sampling_defaults)
        self.context_size = engine.context_size
        self.n_bytes = engine.n_bytes
        self.loaded_engine = engine
        self._n_steps = -1

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def engine(self) -> ServedEngine:
        """Its engine; a handler that meets a model without one is run again when the model is loaded."""
        if self.loaded_engine is None:
            raise UnloadedModel(self)
        return self.loaded_engine

    @property
    def state(self) -> str:
        if self.unload_task:
            return "unloading"
        if self.loaded_engine and self.rest.asleep:
            return "asleep"
        return "loaded" if self.loaded_engine else "loading" if self.load_task else "unloaded"

    @property
    def fault(self) -> str:
        """Why no request to it can succeed; empty if some can. No key is needed to read it, so it names no path."""
        if self.loaded_engine is None:
            return ""
        faults = {
            self.engine.fault: bool(self.engine.fault),
            "Its engine has ended: start the server again.": not self.engine.alive,
            "A file of its weights was changed or cut short while in use: load it again.": self.engine.weights_changed,
        }
        return next((sentence for sentence, is_so in faults.items() if is_so), "")

    def health(self) -> Health:
        """A step may take minutes on a small machine, so an engine that stands still is busy while it computes."""
        if self.loaded_engine is None:
            return Health.OK
        snapshot = self.engine.snapshot()
        now = time.monotonic()
        before = self._cpu_s
        self._cpu_s = self.engine.cpu_s
        if self.fault:
            return Health.FAILING
        if snapshot.steps != self._n_steps or not snapshot.requests_running:
            self._n_steps = snapshot.steps
            self._moved_at = now
        if now - self._moved_at < STALLED_AFTER_S:
            return Health.OK
        return Health.BUSY if self._cpu_s > before else Health.FAILING


class UnloadedModel(Exception):
    """A request needs a model that is not in memory."""

    def __init__(self, model: ServedModel):
        super().__init__(model.name)
        self.model = model


class ModelRegistry:
    """Models by name. Its tables are replaced, never changed, so any thread may look a model up."""

    def __init__(self, defaults: SamplingParams):
        self.phase = Phase.LOADING
        self.models: tuple[ServedModel, ...] = ()
        self.defaults = defaults  # the server's, over the models' own
        self._by_name: dict[str, ServedModel] = {}

    def put(self, models: Sequence[ServedModel]) -> None:
        """The models there are; some may be loaded already."""
        for model in models:
            if model.loaded_engine:
                model.attach(model.loaded_engine, self.defaults)
        self._put(models)

    def open(self) -> None:
        """Begin to answer requests."""
        self.phase = Phase.READY

    def add(self, model: ServedModel) -> None:
        """One more model."""
        self._put([*self.models, model])

    def add_name(self, model: ServedModel, name: str) -> None:
        """One more name of a model."""
        if self.get(name):
            raise ConfigError(f"There is a model {name[:256]!r} already: take another name.")
        if len(model.names) >= MAX_NAMES:
            raise ConfigError(f"The model {model.name} has {MAX_NAMES} names already: remove one.")
        model.names += (name,)
        self._put(self.models)

    def remove_name(self, name: str) -> None:
        """A name less; a model without names is no longer served."""
        model = self.find(name)
        left = tuple(each for each in model.names if each.lower() != name.lower())
        model.names = left or model.names
        self._put([each for each in self.models if left or each is not model])

    def _put(self, models: Sequence[ServedModel]) -> None:
        found: dict[str, ServedModel] = {}
        for model in models:
            for name in model.names:
                if name in found:
                    raise ConfigError(f"Two models are called {name}: name one of them with --model NAME=MODEL.")
                found[name] = model
        # Names are also found in other cases, where that is not another model's name.
        self._by_name = {name.lower(): model for name, model in reversed(found.items())} | found
        self.models = tuple(models)

    @property
    def loaded(self) -> list[ServedModel]:
        return [model for model in self.models if model.loaded_engine]

    def close(self) -> None:
        """No more requests are accepted."""
        self.phase = Phase.CLOSING

    def clear(self) -> None:
        """Let go of the models."""
        self.models = ()
        self._by_name = {}

    def check_ready(self) -> None:
        if self.phase is not Phase.READY:
            raise self.unavailable()

    def unavailable(self) -> HttpError:
        """Why no request is accepted."""
        what = "still loading" if self.phase is Phase.LOADING else "shutting down"
        message = f"The server is {what}: try again later."
        return HttpError(503, message, code=self.phase.value, headers={"retry-after": "2"})

    def find(self, name: str | None) -> ServedModel:
        """The model of that name, or the first if none is named."""
        self.check_ready()
        if not name and self.models:
            return self.models[0]
        found = self.get(name or "")
        if found is None:
            raise self.unknown(name or "")
        return found

    def get(self, name: str) -> ServedModel | None:
        return self._by_name.get(name) or self._by_name.get(name.lower())

    def find_adapted(self, name: str | None) -> tuple[ServedModel, str]:
        """The model of that name, and the adapter behind its last colon, if it names one.

        An adapter alone means the model that has it, as with vLLM, if no model is called so and no other has one.
        """
        base, colon, adapter = (name or "").rpartition(":")
        self.check_ready()
        if not name or self.get(name):
            return self.find(name), ""
        if not colon or not self.get(base):
            having = [model for model in self.loaded if name in (each.name for each in model.engine.adapters())]
            return (having[0], name) if len(having) == 1 else (self.find(name), "")
        model = self.find(base)
        names = [each.name for each in model.engine.adapters()]
        if adapter not in names:
            there = ", ".join(f"{base}:{each}" for each in names) or "none"
            message = f"The model {base} has no adapter {adapter[:80]!r}: there is {there}."
            raise HttpError(400, message, param="model", code="adapter_not_found")
        return model, adapter

    def unknown(self, name: str) -> HttpError:
        names = [name for model in self.models for name in model.names]
        more = ["and others"] if len(names) > MAX_LISTED else []
        served = ", ".join(names[:MAX_LISTED] + more) or "none yet"
        message = f"The model {name[:256]!r} is not served here: there is {served}."
        return HttpError(404, message, param="model", code="model_not_found")

    def health(self) -> Health:
        """The worst of all models."""
        found = {model.health() for model in self.models}
        return next((each for each in (Health.FAILING, Health.BUSY) if each in found), Health.OK)

    @property
    def status(self) -> str:
        """The phase while loading and closing, in between how the loaded engines are."""
        return self.health().value if self.phase is Phase.READY else self.phase.value


def is_ready(status: str) -> bool:
    """Whether requests are accepted and will get tokens."""
    return status in (Health.OK.value, Health.BUSY.value)
