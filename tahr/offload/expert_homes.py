"""Layers whose experts stay in the host's memory, chosen from sizes before a matrix is read: the last ones."""

from collections.abc import Callable, Collection, Mapping

from tahr.errors import ConfigError, LoadError
from tahr.offload.homes import Home, Homes
from tahr.offload.policy import layer_of

HOST = Home(None, "resident")
EXPERTS = ".experts."  # part of the names of stacks of matrices


def expert_layers(names: Collection[str]) -> list[list[str]]:
    """The stacks of experts of every layer that has any, the last layer first."""
    found: dict[int, list[str]] = {}
    for name in names:
        layer = layer_of(name)
        if layer is not None and EXPERTS in name:
            found.setdefault(layer, []).append(name)
    return [found[layer] for layer in sorted(found, reverse=True)]


def expert_homes(choice: str, sizes: Mapping[str, int], budget: Callable[[], int]) -> Homes:
    """Homes on the host for the experts of as many layers as were asked for: all, a number, or `auto`, as few as let
    the rest fit into the `budget`. `sizes` are bytes on the device, by name.
    """
    layers = expert_layers(sizes)
    if not layers and choice not in ("auto", "0"):
        raise ConfigError(f"cpu_experts is {choice}, but the model has no experts: leave it out.")
    n_layers = least_layers(layers, sizes, budget()) if choice == "auto" else len(layers)
    n_layers = min(n_layers, int(choice)) if choice.isdecimal() else n_layers
    return {name: HOST for layer in layers[:n_layers] for name in layer}


def least_layers(layers: list[list[str]], sizes: Mapping[str, int], budget: int) -> int:
    """How many layers' experts must stay on the host."""
    left = sum(sizes.values())
    for n, layer in enumerate(layers):
        if left <= budget:
            return n
        left -= sum(sizes[name] for name in layer)
    if left > budget:
        raise LoadError(
            f"Without its experts the model takes {left / 1e6:.1f} MB, and {budget / 1e6:.1f} MB of the GPU are for "
            "weights: use a smaller model, one quantised further, or a smaller context (-c)."
        )
    return len(layers)
