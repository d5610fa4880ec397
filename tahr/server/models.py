"""The models a server answers with, and whether it answers at all."""

import time
import zlib
from dataclasses import dataclass, field
from enum import Enum

from tahr import __version__
from tahr.config import SamplingParams, precedence
from tahr.errors import ConfigError
from tahr.server.engine_port import ServedEngine
from tahr.server.http.errors import HttpError

STALLED_AFTER_S = 60.0  # without a step while requests run


class Phase(Enum):
    """Where a server is in its life."""

    LOADING = "loading"
    READY = "ok"
    CLOSING = "closing"


class Health(Enum):
    """How an engine is."""

    OK = "ok"
    BUSY = "busy"  # in a step that takes long
    FAILING = "failing"  # its thread has ended, or does nothing while requests run


@dataclass(slots=True)
class ServedModel:
    """A model and the names it answers to; the first is the one in metrics and logs."""

    names: tuple[str, ...]
    engine: ServedEngine
    created: int = field(default_factory=lambda: int(time.time()))
    # Where a request says nothing; complete once the registry has opened.
    defaults: SamplingParams = field(default_factory=SamplingParams)
    fingerprint: str = ""  # changes when the same seed may give another text
    _n_steps: int = -1  # the engine's counter when it last moved
    _moved_at: float = 0.0
    _cpu_s: float = 0.0  # of the engine's thread when it was last looked at

    def __post_init__(self) -> None:
        facts = f"{self.engine.name}/{self.engine.backend_summary}/{self.engine.context_size}"
        self.fingerprint = f"tahr-{__version__}-{zlib.crc32(facts.encode()):08x}"

    @property
    def name(self) -> str:
        return self.names[0]

    def health(self) -> Health:
        """A step may take minutes on a small machine, so an engine that stands still is busy while it computes."""
        snapshot, now = self.engine.snapshot(), time.monotonic()
        before, self._cpu_s = self._cpu_s, self.engine.cpu_s
        if not self.engine.alive:
            return Health.FAILING
        if snapshot.steps != self._n_steps or not snapshot.requests_running:
            self._n_steps, self._moved_at = snapshot.steps, now
        if now - self._moved_at < STALLED_AFTER_S:
            return Health.OK
        return Health.BUSY if self._cpu_s > before else Health.FAILING


class ModelRegistry:
    """Models by name. Fixed once it has opened, so any thread may look a model up."""

    def __init__(self, defaults: SamplingParams):
        self.phase = Phase.LOADING
        self.models: tuple[ServedModel, ...] = ()
        self._defaults = defaults  # the server's, over the models' own
        self._by_name: dict[str, ServedModel] = {}

    def open(self, models: list[ServedModel]) -> None:
        """From here on requests are answered."""
        found: dict[str, ServedModel] = {}
        for model in models:
            model.defaults = precedence(model.defaults, self._defaults, model.engine.sampling_defaults)
            for name in model.names:
                if name in found:
                    raise ConfigError(f"Two models are called {name}: name one of them with --model NAME=MODEL.")
                found[name] = model
        # Names are also found in other cases, where that is not another model's name.
        self._by_name = {name.lower(): model for name, model in reversed(found.items())} | found
        self.models = tuple(models)
        self.phase = Phase.READY

    def close(self) -> None:
        """No more requests are accepted."""
        self.phase = Phase.CLOSING

    def clear(self) -> None:
        """Let go of the models."""
        self.models, self._by_name = (), {}

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
        if not name:
            return self.models[0]
        found = self._by_name.get(name) or self._by_name.get(name.lower())
        if found is None:
            raise self.unknown(name)
        return found

    def find_adapted(self, name: str | None) -> tuple[ServedModel, str]:
        """The model of that name, and the adapter behind its last colon, if it names one."""
        base, colon, adapter = (name or "").rpartition(":")
        self.check_ready()
        known = name in self._by_name or (name or "").lower() in self._by_name
        if known or not colon or not (base in self._by_name or base.lower() in self._by_name):
            return self.find(name), ""
        model = self.find(base)
        names = [each.name for each in model.engine.adapters()]
        if adapter not in names:
            there = ", ".join(f"{base}:{each}" for each in names) or "none"
            message = f"The model {base} has no adapter {adapter[:80]!r}: there is {there}."
            raise HttpError(400, message, param="model", code="adapter_not_found")
        return model, adapter

    def unknown(self, name: str) -> HttpError:
        served = ", ".join(name for model in self.models for name in model.names) or "none yet"
        message = f"The model {name[:256]!r} is not served here: there is {served}."
        return HttpError(404, message, param="model", code="model_not_found")

    def health(self) -> Health:
        """The worst of all models."""
        found = {model.health() for model in self.models}
        return next((each for each in (Health.FAILING, Health.BUSY) if each in found), Health.OK)

    @property
    def status(self) -> str:
        """The phase while loading and closing, in between how the engines are."""
        return self.health().value if self.phase is Phase.READY else self.phase.value


def is_ready(status: str) -> bool:
    """Whether requests are accepted and will get tokens."""
    return status in (Health.OK.value, Health.BUSY.value)
