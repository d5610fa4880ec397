"""A bound on the memory of a device: what weights, keys and values, and steps may take of it in all."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tahr.backends.api import Backend
from tahr.backends.host.budget import SCRATCH_BYTES, SCRATCH_SHARE
from tahr.config import EngineConfig
from tahr.config.sizes import parse_size
from tahr.errors import ConfigError, LoadError
from tahr.loading.budgets import KV_SHARE, least_budget
from tahr.loading.placement import Pool
from tahr.offload.homes import TensorSize
from tahr.offload.plan import PagedPlan
from tahr.offload.policy import OffloadPolicy
from tahr.offload.streaming import plan_streaming, refuse_gpu_budget


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
        return plan(config)
    except (ConfigError, LoadError):
        budget = gpu_budget_bytes(config)
        least = least_budget(lambda n_bytes: plan(with_gpu_budget(config, n_bytes)), budget)
        if least is None:
            raise
        refuse_gpu_budget(budget, least, has_experts)
