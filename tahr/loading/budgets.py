"""Options about weights that do not fit, and the backends that have a mechanism for them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from tahr.backends.api import Backend
from tahr.backends.host.budget import SCRATCH_BYTES, SCRATCH_SHARE
from tahr.backends.host.memory import host_total_bytes, loadable_bytes
from tahr.config import EngineConfig
from tahr.config.sizes import parse_size
from tahr.errors import ConfigError, LoadError
from tahr.loading.placement import Placement, Pool
from tahr.models.loader.load import Loaded
from tahr.offload.expert_homes import expert_homes
from tahr.offload.homes import ON_HOST, Homes, TensorSize
from tahr.offload.plan import PagedPlan
from tahr.offload.policy import OffloadPolicy
from tahr.offload.streaming import plan_streaming, refuse_gpu_budget


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
    "offload_dir": Needs(frozenset({"written"}), True, "nothing is written there"),
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


# ---- a GPU's memory -------------------------------------------------------------------------------------------


def gpu_budget_bytes(config: EngineConfig) -> int:
    """The bytes of a budget; shares of a device have been worked out by `within_gpu_budget`."""
    assert config.gpu_budget is not None
    return parse_size(config.gpu_budget, "gpu_budget").n_bytes


def within_gpu_budget(config: EngineConfig, backend: Backend) -> EngineConfig:
    """The configuration with a bound in bytes on the device's memory, and on keys and values in it."""
    if config.gpu_budget is None:
        return config
    if config.lora_rows:
        raise ConfigError(
            "lora_rows is room for adapters behind matrices that stay on the GPU, which gpu_budget may move: leave one "
            "of them out. Adapters work without it."
        )
    n_bytes = parse_size(config.gpu_budget, "gpu_budget").of(backend.total_bytes())
    backend.bound_memory(n_bytes)
    return with_gpu_budget(replace(config, gpu_memory_utilization=None, lora_rows=0), n_bytes)


def with_gpu_budget(config: EngineConfig, n_bytes: int) -> EngineConfig:
    """A bounded configuration with another budget, of which keys and values get their share if they had it before."""
    had_share = config.kv_bytes is None or config.kv_bytes == gpu_budget_bytes(config) // KV_SHARE
    kv_bytes = max(1, n_bytes // KV_SHARE) if had_share else config.kv_bytes
    return replace(config, gpu_budget=str(n_bytes), kv_bytes=kv_bytes)


def speed_note(placement: Placement, backend: Backend) -> str:
    """A sentence on how fast steps can be that copy weights; empty where they copy none."""
    rate = backend.copy_rate() if placement.streamed_bytes else None
    if rate is None:
        return ""
    step_s = placement.step_bytes / rate
    each = ", ".join(f"{n / step_s:.1f} for {n} requests" for n in (1, 32))
    return (
        f"The bus copies {rate / 1e9:.1f} GB/s, as measured now, so a step takes at least {step_s:.3f} s: at most so "
        f"many tokens/s: {each}."
    )


def scratch_bytes(budget: int) -> int:
    """Memory of a budget that steps compute in."""
    return min(SCRATCH_BYTES, budget // SCRATCH_SHARE)


def streamed_within(
    config: EngineConfig,
    sizes: Mapping[str, TensorSize],
    n_layers: int,
    pools_within: Callable[[EngineConfig], list[Pool]],
    has_experts: bool,
) -> tuple[list[Pool], PagedPlan]:
    """Pools, and homes of the tensors beside them; a budget that is too small is refused with the least that works."""

    def plan(config: EngineConfig) -> tuple[list[Pool], PagedPlan]:
        pools = pools_within(config)
        budget = gpu_budget_bytes(config)
        n_bytes = sum(pool.n_bytes for pool in pools) + scratch_bytes(budget)
        return pools, plan_streaming(sizes, budget, OffloadPolicy.none(), n_layers, n_bytes)

    try:
        found = plan(config)
    except (ConfigError, LoadError):
        budget = gpu_budget_bytes(config)
        least = least_budget(lambda n_bytes: plan(with_gpu_budget(config, n_bytes)), budget)
        if least is None:
            raise
        refuse_gpu_budget(budget, least, has_experts)
    refuse_beyond_host(found[1].step_bytes, loadable_bytes())
    return found


def refuse_beyond_host(n_bytes: int, free_bytes: int | None) -> None:
    """Refuse layers that the host has no memory for."""
    if free_bytes is not None and n_bytes > free_bytes:
        raise LoadError(
            f"The layers beyond the gpu_budget take {n_bytes / 1e6:.1f} MB of the host's memory, of which "
            f"{free_bytes / 1e6:.1f} MB are free: raise the budget, end other programs, or choose a smaller model."
        )


# ---- experts on the host ---------------------------------------------------------------------------------------


def experts_on_host(config: EngineConfig, backend: Backend, loaded: Loaded) -> Homes:
    """Homes of the experts that stay on the host, of a model whose sizes are those of the device."""
    if config.cpu_experts is None:
        return {}
    refuse_beside_experts(config)
    sizes = {name: weight.n_bytes for name, weight in loaded.sizes.items() if not weight.file_bytes}
    sizes["vectors"] = loaded.n_vector_bytes
    return expert_homes(config.cpu_experts, sizes, partial(weight_budget, config, backend))


def weight_budget(config: EngineConfig, backend: Backend) -> int:
    """The memory of a device that weights may take: keys and values get what was asked for, or a share."""
    in_all = backend.kv_budget(config.gpu_memory_utilization)
    return max(0, in_all - (in_all // KV_SHARE if config.kv_bytes is None else config.kv_bytes))


def refuse_beside_experts(config: EngineConfig) -> None:
    """Refuse options that move the same matrices."""
    if config.gpu_budget is not None:
        raise ConfigError(
            "cpu_experts and gpu_budget are both set, and both say which weights leave the GPU: use one of them; "
            "gpu_memory_utilization bounds the GPU's memory beside cpu_experts."
        )


def refuse_too_large_for_host(n_bytes: int) -> None:
    """Refuse experts that the host has no memory for."""
    free = loadable_bytes()
    if free is not None and n_bytes > free:
        raise LoadError(
            f"Experts of {n_bytes / 1e6:.1f} MB were to stay in the host's memory, and {free / 1e6:.1f} MB are free: "
            "lower cpu_experts, end other programs, or use a model quantised further."
        )
