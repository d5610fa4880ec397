"""Options about weights that do not fit, and the backends that have a mechanism for them."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from tahr.backends.api import Backend
from tahr.backends.host.memory import host_total_bytes
from tahr.config import EngineConfig
from tahr.config.sizes import parse_size
from tahr.errors import ConfigError, LoadError
from tahr.offload.homes import ON_HOST
from tahr.offload.policy import OffloadPolicy


class Needs(NamedTuple):
    """The needs of an option: one of these homes, and a backend with memory of its own or of the host."""

    homes: frozenset[str]
    own_memory: bool | None  # None: either
    instead: str


OPTIONS = {
    "gpu_budget": Needs(frozenset({"streamed"}), None, "use ram_budget where weights lie in the host's memory"),
    "cpu_experts": Needs(frozenset({ON_HOST}), True, "on a CPU all experts are on the host"),
    "ram_budget": Needs(
        frozenset({"paged"}), False, "use a backend that reads weights as they are needed, such as cpu"
    ),
    "offload_dir": Needs(frozenset({ON_HOST}), True, "nothing is written there"),
}


MOST_BUDGET = 1 << 60
KV_SHARE = 4  # share of a budget that keys and values may take where nobody says how much: one n-th


def budget_bytes(config: EngineConfig) -> int:
    """The host memory that weights and KV may take."""
    assert config.ram_budget is not None
    return parse_size(config.ram_budget, "ram_budget").of(host_total_bytes())


def policy_of(config: EngineConfig) -> OffloadPolicy:
    """The bound on the host's memory that was asked for."""
    return OffloadPolicy.budget(budget_bytes(config)) if config.ram_budget is not None else OffloadPolicy.none()


def within_budget(config: EngineConfig) -> EngineConfig:
    """The configuration with a bound on keys and values that leaves room for weights."""
    if config.ram_budget is None or config.kv_bytes is not None:
        return config
    return replace(config, kv_bytes=kv_share(config))


def kv_share(config: EngineConfig) -> int:
    """The bytes of a budget that keys and values get where nobody says how much."""
    return max(1, budget_bytes(config) // KV_SHARE)


def with_budget(config: EngineConfig, n_bytes: int) -> EngineConfig:
    """A bounded configuration with another budget, of which keys and values get their share if they had it before."""
    kv_bytes = None if config.kv_bytes == kv_share(config) else config.kv_bytes
    return within_budget(replace(config, ram_budget=str(n_bytes), kv_bytes=kv_bytes))


def least_budget(plan: Callable[[int], object], too_small: int) -> int | None:
    """The least budget that a plan can be made with, to a thousandth; None: no budget is large enough."""

    def is_enough(n_bytes: int) -> bool:
        try:
            plan(n_bytes)
        except (ConfigError, LoadError):
            return False
        return True

    enough = max(2 * too_small, 1 << 16)
    while not is_enough(enough):
        too_small, enough = enough, 2 * enough
        if enough > MOST_BUDGET:
            return None
    while enough - too_small > enough // 1000:
        middle = (too_small + enough) // 2
        too_small, enough = (too_small, middle) if is_enough(middle) else (middle, enough)
    return enough


def held_weight_bytes(config: EngineConfig, n_weight_bytes: int, n_kv_bytes: int) -> int:
    """The memory that weights take at most: with a budget, no more than it leaves beside keys and values."""
    if config.ram_budget is None:
        return n_weight_bytes
    return min(n_weight_bytes, max(0, budget_bytes(config) - n_kv_bytes))


def refuse_budgets(config: EngineConfig, backend: Backend) -> None:
    """Refuse options that the backend has no mechanism for."""
    for name, needs in OPTIONS.items():
        has = bool(needs.homes & backend.homes) and needs.own_memory in (None, backend.has_own_memory)
        if getattr(config, name) is not None and not has:
            raise ConfigError(
                f"{name} is set, but the {backend.name} backend has no weights elsewhere: leave it out "
                f"({needs.instead})."
            )
