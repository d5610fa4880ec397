"""Homes for the tensors of a model that is larger than a device, from sizes alone.

The first layers stay on the device, as many as there is memory for. The others lie in the host's memory and pass
through two buffers in every step, which is the same work for a step of one token and of thousands.
"""

from collections.abc import Mapping
from typing import NamedTuple, NoReturn

from tahr.errors import LoadError
from tahr.offload.homes import Home, TensorSize
from tahr.offload.plan import PagedPlan, in_memory
from tahr.offload.policy import OffloadPolicy, layer_of

N_BUFFERS = 2
ALIGN = 512  # bytes between tensors of a layer that travel together, at most


class LayerBytes(NamedTuple):
    """The bytes of every layer, by number, and of all other tensors."""

    layers: Mapping[int, int]
    others: int

    @staticmethod
    def of(sizes: Mapping[str, TensorSize]) -> "LayerBytes":
        """Sums over the tensors of a model."""
        layers: dict[int, int] = {}
        others = 0
        for name, size in sizes.items():
            layer = layer_of(name)
            if layer is None:
                others += size.n_bytes
            else:
                layers[layer] = layers.get(layer, 0) + size.n_bytes + ALIGN
        return LayerBytes(layers, others)

    @property
    def total(self) -> int:
        return self.others + sum(self.layers.values())

    def buffers(self, streamed: list[int]) -> int:
        """Bytes of the buffers that some layers pass through."""
        return max(self.layers[layer] for layer in streamed) * min(N_BUFFERS, len(streamed))


def plan_streaming(
    sizes: Mapping[str, TensorSize],
    budget: int,
    policy: OffloadPolicy,
    n_layers: int,
    other_bytes: int = 0,
) -> PagedPlan:
    """Homes of the tensors that pass through the device, whose weights and `other_bytes` have `budget` bytes in all."""
    sizes = in_memory(sizes)
    found = LayerBytes.of(sizes)
    left = budget - other_bytes
    if found.total <= left:
        return PagedPlan({})

    kept: set[int] = {n_layers - 1 - i for i in range(policy.pin_last_n_layers)}
    streamed = [layer for layer in sorted(found.layers) if layer not in kept]
    left -= found.others + sum(found.layers[layer] for layer in kept if layer in found.layers)
    n_kept = 0
    if not streamed or found.buffers(streamed) > left:
        refuse_gpu_budget(budget, budget - left + (found.buffers(streamed) if streamed else 0))

    while True:
        n_bytes = found.layers[streamed[n_kept]]
        rest = streamed[n_kept + 1 :]
        if not rest or n_bytes + found.buffers(rest) > left:
            break
        left -= n_bytes
        n_kept += 1

    passing = set(streamed[n_kept:])
    layers = {name: layer for name in sizes if (layer := layer_of(name)) in passing}
    return PagedPlan(
        {name: Home(0, "streamed", layer=layer) for name, layer in layers.items()},
        step_bytes=sum(found.layers[layer] for layer in passing),
        buffer_bytes=found.buffers(sorted(passing)),
    )


def refuse_gpu_budget(budget: int, least: int, has_experts: bool = False) -> NoReturn:
    """Refuse a budget below what the model can run in."""
    least_mb = -(-least // 10**5) / 10  # rounded up, so that what is said is enough
    elsewhere = "keep experts in the host's memory (--cpu-experts), " if has_experts else ""
    raise LoadError(
        f"A gpu_budget of {budget / 1e6:.1f} MB is too small for this model: with two layers on the device at a time, "
        f"its embeddings and head, what steps compute in and its cache beside them, it needs at least {least_mb:.1f} "
        f"MB. Raise the budget, use a smaller context (-c), {elsewhere}or choose a smaller model."
    )
