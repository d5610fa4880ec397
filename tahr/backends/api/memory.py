"""What layers remember of their sequences, and the memory of the device it lies in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tahr.errors import ConfigError

KV_BLOCK = 32  # numbers of a q8_0 head that share a scale


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one layer stores for one token."""

    n_heads: int
    head_dim: int


# Bytes of KV_BLOCK stored numbers.
KV_BLOCK_BYTES = {"f32": 4 * KV_BLOCK, "f16": 2 * KV_BLOCK, "bf16": 2 * KV_BLOCK, "q8_0": KV_BLOCK + 2}


def stored_head_bytes(dtype: str, head_dim: int) -> int:
    """What one head of one token takes on either side of a KV store."""
    if dtype == "q8_0" and head_dim % KV_BLOCK:
        raise ConfigError(
            f"A q8_0 KV cache keeps the numbers of a head in groups of {KV_BLOCK}, but this model's heads have "
            f"{head_dim}: ask for f16."
        )
    return head_dim * KV_BLOCK_BYTES[dtype] // KV_BLOCK


@dataclass(frozen=True, slots=True)
class KVStore:
    """Paged keys and values of all layers; `layers[i]` is the backend's handle for layer i.

    Layers fall into groups, each with pages and page tables of its own: those with a window need fewer.

    f32, f16 and bf16 round to the nearest, ties to even. q8_0 rounds every `KV_BLOCK` numbers of a head of a token to
    int8 codes: scale = max|x| / 127 in f32, rounded to f16; code = x * (1 / scale) in f32, rounded to the nearest, ties
    to even, and held within +-127 (a scale of 0: all codes 0). What is read is code * scale, which f32 holds exactly.
    Numbers that are not finite, or need a scale beyond f16, turn their whole block into NaN.
    """

    shapes: tuple[KVShape, ...]
    n_pages: tuple[int, ...]  # of each group
    group_of: tuple[int, ...]  # by layer
    page_size: int
    dtype: str
    n_bytes: int
    layers: tuple[Any, ...]

    def members(self, group: int) -> list[Any]:
        """The layers of a group."""
        return [layer for layer, its_group in zip(self.layers, self.group_of, strict=True) if its_group == group]


def layer_groups(n_layers: int, groups: Sequence[Sequence[int]] | None) -> tuple[int, ...]:
    """The group of every layer, given the layers of every group; without any, all layers are one group."""
    found = {layer: group for group, layers in enumerate(groups or [range(n_layers)]) for layer in layers}
    return tuple(found[layer] for layer in range(n_layers))


@dataclass(frozen=True, slots=True)
class Memory:
    """What a device has for keys and values, weights and all."""

    free_bytes: int
    total_bytes: int
    own: bool = False  # nothing but models lives there, as on a GPU
