"""The wish of a user: bounds on memory, and tensors that stay in it whatever happens."""

import re
from dataclasses import dataclass

from tahr.errors import ConfigError

LAYER = re.compile(r"model\.layers\.(\d+)\.")
PREFETCH = 2  # layers read ahead where nothing else is said


def layer_of(name: str) -> int | None:
    """The layer that a tensor of that canonical name belongs to."""
    found = LAYER.match(name)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class OffloadPolicy:
    """How much memory weights may take, and which of them are never given up."""

    ram_bytes: int | None = None  # None: no bound but the machine's
    pin_embeddings: bool = False
    pin_output_head: bool = False
    pin_last_n_layers: int = 0
    prefetch_n_ahead: int = PREFETCH

    def __post_init__(self) -> None:
        numbers = (self.ram_bytes or 0, self.pin_last_n_layers, self.prefetch_n_ahead)
        if min(numbers) < 0 or self.ram_bytes == 0:
            raise ConfigError(
                "An offload policy has a budget above 0 bytes, and counts of layers that are not below 0."
            )

    @staticmethod
    def none() -> "OffloadPolicy":
        """All weights stay in memory; a model that has no room there is refused."""
        return OffloadPolicy()

    @staticmethod
    def budget(ram_bytes: int) -> "OffloadPolicy":
        """Weights take at most so many bytes."""
        return OffloadPolicy(ram_bytes)

    @staticmethod
    def pinned_hot_set(
        ram_bytes: int,
        pin_embeddings: bool = True,
        pin_output_head: bool = True,
        pin_last_n_layers: int = 0,
        prefetch_n_ahead: int = PREFETCH,
    ) -> "OffloadPolicy":
        """Likewise, and some tensors stay for good."""
        return OffloadPolicy(ram_bytes, pin_embeddings, pin_output_head, pin_last_n_layers, prefetch_n_ahead)

    def pins(self, name: str, n_layers: int) -> bool:
        """Whether a tensor of that canonical name is never given up."""
        if name.startswith("lm_head."):
            return self.pin_output_head
        layer = layer_of(name)
        if layer is None:
            return self.pin_embeddings and "embed" in name
        return layer >= n_layers - self.pin_last_n_layers
