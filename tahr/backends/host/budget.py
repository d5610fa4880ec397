"""How much memory keys, values and states may take when nobody says how much."""

from tahr.backends.host.memory import host_free_bytes
from tahr.errors import ConfigError

HOST_SHARE = 4  # share of a host's free memory: one n-th, because others need it too
DEVICE_SHARE = 0.9  # share of a device's memory, weights and all
SCRATCH_BYTES = 4 << 30  # memory of a device that steps compute in
SCRATCH_SHARE = 8  # limit for small devices: one n-th of their memory


def host_kv_budget(share: float | None) -> int:
    """On a host, where `share` has no meaning."""
    if share is not None:
        raise ConfigError("gpu_memory_utilization is for a GPU, which has memory of its own: leave it out here.")
    return host_free_bytes() // HOST_SHARE


def device_kv_budget(free_bytes: int, total_bytes: int, share: float | None) -> int:
    """On a device of its own: what is free within the share Tahr may use, but for what a step needs."""
    spared = int((1 - (DEVICE_SHARE if share is None else share)) * total_bytes)
    return max(0, free_bytes - spared - min(SCRATCH_BYTES, total_bytes // SCRATCH_SHARE))
