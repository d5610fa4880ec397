"""Memory of sequences in layers: pages of keys and values that grow, or a state of fixed size."""

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tahr.backends.api.step import StepInputs
from tahr.backends.api.tensors import Ints
from tahr.errors import ConfigError

KV_BLOCK = 32  # numbers of a q8_0 head that share a scale
# Bytes of KV_BLOCK stored numbers.
KV_BLOCK_BYTES = {
    "f32": 4 * KV_BLOCK, "f16": 2 * KV_BLOCK, "bf16": 2 * KV_BLOCK, "fp8": KV_BLOCK, "q8_0": KV_BLOCK + 2
}  # fmt: skip
NULL_SLOT = 0  # the state slot that belongs to no sequence


@dataclass(frozen=True, slots=True)
class KVShape:
    """Storage of one layer for one token: a key and a value of each head.

    A `latent` layer stores keys alone: its values are the last so many numbers of its keys.
    """

    n_heads: int
    head_dim: int
    latent: int = 0

    @property
    def value_dim(self) -> int:
        """Numbers of a value."""
        return self.latent or self.head_dim

    def sides(self, dtype: str) -> tuple[str, ...]:
        """The types of what is stored: of keys and of values, or of keys alone."""
        if not self.latent:
            return kv_sides(dtype)
        if {"q8_0", "fp8"} & {*kv_sides(dtype)}:
            raise ConfigError(
                "This model's layers keep one compressed vector per token in place of keys and values, which is not "
                "stored in 8 bits: ask for a KV cache of f16."
            )
        return kv_sides(dtype)[:1]

    def token_bytes(self, dtype: str) -> int:
        """The memory of one token."""
        return self.n_heads * sum(stored_head_bytes(side, self.head_dim) for side in self.sides(dtype))


@dataclass(frozen=True, slots=True)
class CrossShape(KVShape):
    """Storage of one layer for one row of an input that all tokens of a sequence look at, none of which are its own.

    An input has `n_rows` rows, whose keys and values an encoder stores once.
    """

    n_rows: int = 0


@dataclass(frozen=True, slots=True)
class StateShape:
    """Storage of one layer for one sequence of any length: an f32 array, such as the state of a recurrence.

    A sequence whose first token in a step has position 0 starts from zeros, whatever its slot holds.
    """

    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """The memory of one sequence."""
        return 4 * prod(self.shape)


LayerShape = KVShape | StateShape


def kv_sides(dtype: str) -> tuple[str, str]:
    """The types of keys and of values: "q8_0/f16" names one each, "f16" both."""
    keys, _, values = dtype.partition("/")
    return keys, values or keys


def stored_head_bytes(dtype: str, head_dim: int) -> int:
    """Bytes of one key or one value of one head."""
    if dtype == "q8_0" and head_dim % KV_BLOCK:
        raise ConfigError(
            f"A q8_0 KV cache keeps the numbers of a head in groups of {KV_BLOCK}, but this model's heads have "
            f"{head_dim}: ask for f16."
        )
    return head_dim * KV_BLOCK_BYTES[dtype] // KV_BLOCK


def rotated_together(head_dim: int) -> int:
    """How many neighbouring numbers of a q8_0 head one Hadamard matrix rotates: the largest power of two that fits."""
    return head_dim & -head_dim


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """How much memory the layers of a model get, and how it is divided.

    Layers with pages fall into groups, each with pages and page tables of its own: those with a window need fewer.
    `groups` lists the layers of each; None makes all of them one group. Layers with a state have `n_slots` slots each,
    the null slot among them.
    """

    layers: tuple[LayerShape, ...]
    n_pages: tuple[int, ...]  # counts by group
    page_size: int
    dtype: str  # type of keys and values: one of the backend's `kv_dtypes`, or one for each; see `kv_sides`
    groups: tuple[tuple[int, ...], ...] | None = None
    n_slots: int = 1

    def part(self, layers: range) -> "MemoryLayout":
        """The memory of a range of layers, in the same groups: inputs of a step for all layers serve these too."""
        groups = None
        if self.groups is not None:
            groups = tuple(tuple(i - layers.start for i in group if i in layers) for group in self.groups)
        return replace(self, layers=self.layers[layers.start : layers.stop], groups=groups)

    def group_of(self) -> tuple[int, ...]:
        """The group of every layer; -1 for those with a state."""
        paged = tuple(i for i, shape in enumerate(self.layers) if isinstance(shape, KVShape))
        groups = (paged,) if self.groups is None else self.groups
        found = {layer: group for group, layers in enumerate(groups) for layer in layers}
        assert found.keys() == set(paged), "every layer with pages belongs to one group"
        return tuple(found.get(layer, -1) for layer in range(len(self.layers)))


@dataclass(frozen=True, slots=True)
class KVStore:
    """The memory of all layers; `layers[i]` is the backend's handle for layer i.

    Keys and values in f32, f16, bf16 and fp8 (e4m3 without a scale, at most +-448) are rounded to the nearest, ties to
    even. q8_0 heads are first rotated by a
    Hadamard matrix, so that no number is much larger than the others: butterflies a + b, a - b in f32 of stride 1,
    2, 4, ... over every `rotated_together` numbers, then times 1 / sqrt of their count. Every `KV_BLOCK` numbers of a
    rotated head become int8 codes: scale = max|x| / 127 in f32, rounded to f16; code = x * (1 / scale) in f32, rounded
    to the nearest, ties to even, and held within +-127 (a scale of 0: all codes 0). What is read is code * scale, which
    f32 holds exactly. Numbers that are not finite, or need a scale beyond f16, turn their whole block into NaN. States
    are f32.
    """

    layout: MemoryLayout
    group_of: tuple[int, ...]  # group of each layer; -1: it has a state
    n_bytes: int
    layers: tuple[Any, ...]

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self.layout.page_size

    @property
    def dtype(self) -> str:
        """Type in which keys and values are stored."""
        return self.layout.dtype

    def paged(self, group: int) -> list[Any]:
        """The layers of a group."""
        return [layer for layer, its_group in zip(self.layers, self.group_of, strict=True) if its_group == group]

    def states(self) -> list[Any]:
        """The layers that have a state."""
        return self.paged(-1)


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """The memory of one layer, as the ops of one step see it."""

    step: StepInputs
    store: KVStore
    layer: int

    @property
    def data(self) -> Any:
        """The backend's handle."""
        return self.store.layers[self.layer]

    @property
    def group(self) -> int:
        """Whose page tables and slots it uses."""
        return self.store.group_of[self.layer]

    @property
    def kv_shape(self) -> KVShape:
        """Shape of a layer with pages."""
        shape = self.store.layout.layers[self.layer]
        assert isinstance(shape, KVShape)
        return shape

    @property
    def slot_mapping(self) -> Ints:
        """The slot of every token."""
        slots: Ints = self.step.slot_mapping[self.group]
        return slots

    @property
    def seq_lens(self) -> Ints:
        """How many tokens it holds of every sequence after the step."""
        lengths: Ints = self.step.seq_lens[self.group]
        return lengths

    @property
    def page_table(self) -> Ints:
        """The pages of every sequence."""
        pages: Ints = self.step.page_table[self.group]
        return pages
