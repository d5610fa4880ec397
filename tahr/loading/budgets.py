"""Options about weights that do not fit, and the backends that have a mechanism for them."""

from typing import NamedTuple

from tahr.backends.api import Backend
from tahr.config import EngineConfig
from tahr.errors import ConfigError
from tahr.offload.homes import ON_HOST


class Needs(NamedTuple):
    """The needs of an option: one of these homes, and a backend with memory of its own or of the host."""

    homes: frozenset[str]
    own_memory: bool
    instead: str


OPTIONS = {
    "gpu_budget": Needs(
        frozenset({"streamed", ON_HOST}), True, "use ram_budget where weights lie in the host's memory"
    ),
    "cpu_experts": Needs(frozenset({ON_HOST}), True, "on a CPU all experts are on the host"),
    "ram_budget": Needs(
        frozenset({"paged"}), False, "use a backend that reads weights as they are needed, such as cpu"
    ),
    "offload_dir": Needs(frozenset({"paged"}), False, "nothing is written there"),
}


def refuse_budgets(config: EngineConfig, backend: Backend) -> None:
    """Refuse options that the backend has no mechanism for."""
    for name, needs in OPTIONS.items():
        has = bool(needs.homes & backend.homes) and backend.has_own_memory == needs.own_memory
        if getattr(config, name) is not None and not has:
            raise ConfigError(
                f"{name} is set, but the {backend.name} backend has no weights elsewhere: leave it out "
                f"({needs.instead})."
            )
