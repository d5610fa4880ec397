"""Memory of a backend: weights, vectors, and the pages and states of sequences."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tahr.backends.api.device import Device
from tahr.backends.api.memory import KVShape, KVStore, MemoryLayout, StateShape
from tahr.backends.api.pages import BY_TOKEN, PINNED_BYTES, PageIO, PageIOAtOnce
from tahr.backends.api.row_store import RowStore
from tahr.backends.api.step import StepInputs, StepLimits
from tahr.backends.api.tensors import Bytes, Floats, JoinedLinears, Linear, Vector, Weight
from tahr.backends.host.budget import host_kv_budget
from tahr.backends.host.memory import host_total_bytes, loadable_bytes
from tahr.errors import ConfigError
from tahr.offload.homes import USUAL_HOMES, Home, Panels, SlotArena
from tahr.weights.source import Stamp, file_stamp
from tahr.weights.tensor import HostTensor


class Memory(Device):
    """Memory of a device. States have default bodies that keep them on the host."""

    maps_tables: bool = False  # embedding tables stay in the mapped file, and are read there at every step
    file_stamp: Callable[[int], Stamp] = staticmethod(file_stamp)  # stamp of a file, read at every step
    rounds_to: Sequence[str] = ()  # formats to which it can round float matrices itself
    keeps_lora_rows: bool = False  # see `join`
    has_own_memory: bool = False  # weights, keys and values are in a device's memory, not in the host's
    homes: frozenset[str] = USUAL_HOMES  # names of homes that weights may have here, see `tahr/offload/homes.py`
    mixes_kv_dtypes: bool = True  # keys may be stored in another type than values

    def kv_budget(self, share: float | None) -> int:
        """The bytes that the memory of layers may take when nobody says how many, weights being there already.

        `share` is the part of a device's memory that Tahr may use in all. A host, which others need too, has none: the
        body refuses it.
        """
        return host_kv_budget(share)

    @abstractmethod
    def weight(self, tensor: HostTensor) -> Weight:
        """Take a matrix `[rows, cols]` or a stack `[n, rows, cols]` in the form this backend multiplies fastest."""

    def weight_elsewhere(self, tensor: HostTensor, home: Home) -> Weight:
        """Take a matrix whose home is not the backend's usual place; `homes` says which homes there are."""
        raise ConfigError(
            f"The {self.name} backend has no way to use {tensor.name} from another place: leave out the budget that "
            "asks for it."
        )

    def settle_weights(self) -> None:
        """All matrices of a model have been taken."""

    def bytes_elsewhere(self, tensor: HostTensor, home: Home) -> int:
        """The `n_bytes` of what `weight_elsewhere` makes of a tensor, told without its data."""
        return tensor.n_bytes

    def panels(self, tensor: HostTensor) -> Panels | None:
        """The pieces in which a tensor can be paged; None where it cannot. Told without its data."""
        return None

    def hold_arenas(self, arenas: Sequence[SlotArena]) -> None:
        """Take the memory that matrices whose home is "paged" will share; called before the first of them."""

    def weight_bytes(self, tensor: HostTensor, n_taken: int = 0) -> int:
        """The `n_bytes` of what `weight` makes of a tensor, told without its data; `n_taken` bytes of other matrices
        are on the device by then that are not there yet."""
        return tensor.n_bytes

    def file_bytes(self, tensor: HostTensor) -> int:
        """The `file_bytes` of the same."""
        return 0

    def total_bytes(self) -> int:
        """All of the memory that weights lie in: what a budget may be a share of."""
        return host_total_bytes()

    def copy_rate(self) -> float | None:
        """Bytes a second that are copied from the host's memory, measured now; None where nothing is."""
        return None

    def bound_memory(self, n_bytes: int) -> None:
        """Weights, keys and values, and steps will take no more, so nothing is kept twice to be faster."""

    def free_bytes(self) -> int | None:
        """The memory that weights may take; None where the system does not say."""
        return loadable_bytes()

    @abstractmethod
    def vector(self, values: Floats) -> Vector:
        """Take a norm gain or a bias."""

    @abstractmethod
    def step_inputs(self, limits: StepLimits) -> StepInputs:
        """Input arrays this backend can read."""

    def join(self, linears: Sequence[Linear], lora_rows: int = 0) -> JoinedLinears:
        """Linears that will be computed together. Their own matrices may be given up for views of a common one.

        A backend that `keeps_lora_rows` keeps spare rows behind their matrices for the first factors of adapters, so
        many for each linear, where it multiplies the matrices in a form that allows it.
        """
        return JoinedLinears(tuple(linears))

    def kv_store(self, layout: MemoryLayout) -> KVStore:
        """Memory for the pages and the states of a layout, all zero."""
        group_of = layout.group_of()
        made = []
        n_bytes = 0
        for shape, group in zip(layout.layers, group_of, strict=True):
            if isinstance(shape, StateShape):
                made.append(self.state_layer(shape, layout.n_slots))
                n_bytes += layout.n_slots * shape.n_bytes
            else:
                made.append(self.paged_layer(shape, layout.n_pages[group], layout))
                n_bytes += layout.n_pages[group] * layout.page_size * shape.token_bytes(layout.dtype)
        return KVStore(layout, group_of, n_bytes, tuple(made))

    @abstractmethod
    def paged_layer(self, shape: KVShape, n_pages: int, layout: MemoryLayout) -> Any:
        """The handle of one layer's pages."""

    def state_layer(self, shape: StateShape, n_slots: int) -> Any:
        """The handle of one layer's states: an f32 array [n_slots, *shape].

        The default bodies of `read_states`, `write_states`, `delta_net` and `state_space` read what the one here makes.
        """
        return np.zeros((n_slots, *shape.shape), np.float32)

    @abstractmethod
    def read_pages(self, kv: KVStore, pages: Sequence[int], group: int = 0) -> list[Bytes]:
        """The exact content of pages of a group: per layer [n_pages * page_size, n_heads, bytes of a key and a value].

        The layout is the same whatever the backend's own is. A q8_0 key or value is its codes, then its scales.
        """

    @abstractmethod
    def write_pages(self, kv: KVStore, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None:
        """Put what `read_pages` gave into as many pages; no other page changes."""

    def copy_pages(self, kv: KVStore, pairs: Sequence[tuple[int, int]], group: int = 0) -> None:
        """Exact copies of pages in every layer of a group, as (from, to): all are read before any is written.

        Runs at once, after everything enqueued before it.
        """
        content = self.read_pages(kv, [source for source, _ in pairs], group)
        self.write_pages(kv, [to for _, to in pairs], content, group)

    def page_io(self, kv: KVStore, pinned_bytes: int = PINNED_BYTES) -> PageIO:
        """Copies of pages to the host and back, while steps go on where the device can do both.

        A device that copies from pinned memory locks at most `pinned_bytes` of it; copies beyond them take longer.
        """
        return PageIOAtOnce(self, kv)

    @property
    def page_order(self) -> str:
        """A name for the order of bytes in pages that `page_io` copies. Another order has another name."""
        return BY_TOKEN

    def read_states(self, kv: KVStore, slots: Sequence[int]) -> list[Floats]:
        """The states in some slots: per layer that has them [n_slots, *shape]. Waits for everything enqueued before."""
        self.flush()
        return [layer[list(slots)] for layer in kv.states()]

    def write_states(self, kv: KVStore, slots: Sequence[int], layers: Sequence[Floats]) -> None:
        """Put what `read_states` gave into as many slots; no other slot changes."""
        self.flush()
        for layer, values in zip(kv.states(), layers, strict=True):
            layer[list(slots)] = values

    def copy_states(self, kv: KVStore, pairs: Sequence[tuple[int, int]]) -> None:
        """Exact copies of states in every layer, as (from, to): all are read before any is written.

        Runs at once, after everything enqueued before it.
        """
        content = self.read_states(kv, [source for source, _ in pairs])
        self.write_states(kv, [to for _, to in pairs], content)

    def row_store(self, n_slots: int, width: int) -> RowStore:
        """Row slots, all zero. The default bodies of what reads and writes them keep them on the host."""
        return RowStore(n_slots, width, np.zeros((n_slots, width), np.float32))

    def write_rows(self, buffer: RowStore, slots: Sequence[int], rows: Floats) -> None:
        """Put rows into slots, behind everything enqueued: steps enqueued from now on read them.

        Narrower rows leave the other columns as they are.
        """
        self.flush()
        buffer.data[list(slots), : rows.shape[1]] = rows

    def read_rows(self, buffer: RowStore, slots: Sequence[int]) -> Floats:
        """The rows in some slots. Waits for everything enqueued before."""
        self.flush()
        rows: Floats = buffer.data[list(slots)]
        return rows

    def sleep(self, models: Sequence[object], stores: Sequence[KVStore]) -> int:
        """Give memory back until `wake`; the bytes that it was. Nothing runs meanwhile, and no plan is kept.

        What lies in `stores` is lost. Weights that `models` lead to go to the host, if the device has memory of its
        own. The default body has nothing to give.
        """
        return 0

    def wake(self) -> None:
        """Take the memory again; stores are all zero. Where there is none the error leaves everything asleep."""

    @property
    @abstractmethod
    def kv_dtypes(self) -> tuple[str, ...]:
        """KV element types this backend can read, the default first."""

    @property
    def passing_kv_dtype(self) -> str:
        """The KV element type for texts of which nothing is kept after their step: the default, or a more exact one."""
        return self.kv_dtypes[0]

    def tower_kv_dtype(self, weight: Weight) -> str:
        """The KV element type for steps of a tower with such matrices."""
        return self.passing_kv_dtype
