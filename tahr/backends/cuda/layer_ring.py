"""Layers in the host's memory that pass through two buffers on the device, in the order in which steps use them.

The copies of a step run on a stream of their own: the one of a layer begins when the layer before the last has been
computed, and the device waits for it before the first op that reads it. Within a captured graph they are nodes of it.
Ops say which matrices they need, so a step that reads layers in another order is slower and just as right.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

import torch

from tahr.backends.cuda.compiling import COMPILE_ONLY
from tahr.backends.cuda.host_layers import HostBytes
from tahr.backends.cuda.ops.late_rows import LateRows

log = logging.getLogger("tahr.backends")

N_BUFFERS = 2
ALIGN = 512  # bytes: what kernels expect of memory that has been allocated for a matrix


class View(NamedTuple):
    """A tensor of a layer that ops know, and where its numbers begin among the bytes of the layer."""

    tensor: torch.Tensor
    begin: int
    shape: torch.Size
    strides: tuple[int, ...]

    def show(self, memory: torch.UntypedStorage) -> None:
        """Let the tensor show what lies in this memory."""
        self.tensor.set_(memory, self.begin // self.tensor.element_size(), self.shape, self.strides)


@dataclass(frozen=True, eq=False, slots=True)
class StreamedLayer:
    """A layer in host memory, and the tensors that show it where it lies in a buffer."""

    layer: int
    host: HostBytes
    n_bytes: int
    views: list[View]
    matrices: list[Any]


@dataclass(eq=False, slots=True)
class LayerBuffer:
    """Memory on the device that holds one layer at a time."""

    memory: torch.Tensor
    holds: int | None = None  # place of a layer in the ring's order
    filled: torch.cuda.Event | None = None


@dataclass(eq=False, slots=True)
class LayerRing:
    """The layers of a model that do not stay on the device."""

    device: torch.device
    layers: list[StreamedLayer] = field(default_factory=list)
    _open: dict[int, Any] = field(default_factory=dict)  # matrices of the layer that is being loaded, by id
    _open_layer: int | None = None
    _place_of: dict[int, int] = field(default_factory=dict)  # place in `layers`, by id of a matrix
    _buffers: list[LayerBuffer] = field(default_factory=list)
    _stream: Any = None
    _begun: torch.cuda.Event | None = None  # the begin of the step that is enqueued
    _at: int | None = None  # place of the layer that ops read
    _late: LateRows | None = None  # the last product of that layer that was put off

    # ---- loading ----------------------------------------------------------------------------------------------

    def take(self, layer: int, matrix: Any) -> None:
        """Add a matrix, which is on the device, to a layer. The layer moves to the host when another one begins."""
        if layer != self._open_layer:
            self._store()
        self._open_layer = layer
        self._open[id(matrix)] = matrix

    def join(self, parts: Iterable[Any], made: Iterable[Any]) -> None:
        """Say that matrices were made of these."""
        if any(id(part) in self._open for part in parts):
            for part in parts:
                self._open.pop(id(part), None)
            self._open |= {id(matrix): matrix for matrix in made}

    def settle(self) -> None:
        """All matrices are there: give their layers buffers to pass through."""
        if not self._open:
            return
        self._store()
        self.layers.sort(key=lambda each: each.layer)
        if not self.is_pinned:
            log.warning(
                "The system pins too little memory for the layers beyond the GPU's budget: their copies are slower, "
                "and steps are not captured. Raise the limit on locked memory (ulimit -l), or the budget."
            )
        n_bytes = max(each.n_bytes for each in self.layers)
        memory = [torch.zeros(n_bytes, dtype=torch.uint8, device=self.device) for _ in self.layers[:N_BUFFERS]]
        self._buffers = [LayerBuffer(each) for each in memory]
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream()
        for place, each in enumerate(self.layers):
            there = memory[place % N_BUFFERS].untyped_storage()
            for view in each.views:
                view.show(there)
            self._place_of |= {id(matrix): place for matrix in each.matrices}

    def _store(self) -> None:
        """Move the layer that is being loaded to the host."""
        if self._open_layer is None or not self._open:
            return
        matrices = list(self._open.values())
        tensors = list({id(t): t for matrix in matrices for t in tensors_of(matrix)}.values())
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
        begins: dict[int, int] = {}
        n_bytes = 0
        for address, storage in storages.items():
            begins[address] = n_bytes
            n_bytes += -(-storage.nbytes() // ALIGN) * ALIGN
        host = HostBytes(n_bytes, self.device)
        for address, storage in storages.items():
            host.put(begins[address], torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage))
        views = [view_of(t, begins[t.untyped_storage().data_ptr()]) for t in tensors]
        nothing = torch.UntypedStorage(0, device=self.device)
        for tensor in tensors:
            tensor.set_(nothing, 0, (0,), (1,))
        self.layers.append(StreamedLayer(self._open_layer, host, n_bytes, views, matrices))
        self._open = {}

    @property
    def is_pinned(self) -> bool:
        """Whether all layers are in pinned memory."""
        return all(each.host.is_pinned for each in self.layers)

    @property
    def n_bytes(self) -> int:
        """Bytes that pass through the buffers in a step."""
        return sum(each.n_bytes for each in self.layers)

    # ---- steps ------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Copies of a step wait for what is enqueued before it, and for no more."""
        self.forget()
        if self._stream and not COMPILE_ONLY.active:
            self._begun = torch.cuda.current_stream().record_event()

    def end_step(self) -> None:
        """All copies are part of the step."""
        if self._stream and not COMPILE_ONLY.active:
            torch.cuda.current_stream().wait_stream(self._stream)
        self.forget()

    def forget(self) -> None:
        """Nothing is known of what the buffers hold: a graph that is replayed writes them."""
        self._begun = None
        self._at = None
        self._late = None
        for buffer in self._buffers:
            buffer.holds = None

    def need(self, matrix: Any) -> None:
        """Ops enqueued from now on read this matrix, and none of other layers that pass through."""
        place = self._place_of.get(id(matrix))
        if place is None or place == self._at or COMPILE_ONLY.active:
            return
        self._read_late()
        free = self._free_from()
        self._have(place, free)
        buffer = self._buffers[place % N_BUFFERS]
        if buffer.filled:
            torch.cuda.current_stream().wait_event(buffer.filled)
        self._at = place
        if place + 1 < len(self.layers):
            self._have(place + 1, free)

    def put_off(self, matrix: Any, late: LateRows) -> None:
        """A product by this matrix will be computed later: before its buffer is filled again."""
        if id(matrix) in self._place_of:
            self._late = late

    def _read_late(self) -> None:
        late = self._late
        self._late = None
        if late and not late.is_read:
            late.values  # noqa: B018  (it computes them)

    def _free_from(self) -> torch.cuda.Event | None:
        """The event behind all that reads buffers."""
        if not self._stream:
            return None
        if self._at is None and self._begun:
            return self._begun
        return torch.cuda.current_stream().record_event()

    def _have(self, place: int, free: torch.cuda.Event | None) -> None:
        """Copy a layer to its buffer, unless it is there."""
        buffer = self._buffers[place % N_BUFFERS]
        if buffer.holds == place:
            return
        buffer.holds = place
        host = self.layers[place].host
        if free is None:
            host.send(buffer.memory)
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(free)
            host.send(buffer.memory)
            buffer.filled = self._stream.record_event()


def tensors_of(matrix: Any) -> Iterator[torch.Tensor]:
    """The tensors that a matrix is made of."""
    if isinstance(matrix, torch.Tensor):
        yield matrix
    elif is_dataclass(matrix):
        parts = (getattr(matrix, each.name) for each in fields(matrix))
        yield from (part for part in parts if isinstance(part, torch.Tensor))


def view_of(tensor: torch.Tensor, begin: int) -> View:
    """A tensor among the bytes of a layer, in which its memory begins there."""
    at = begin + tensor.storage_offset() * tensor.element_size()
    return View(tensor, at, tensor.shape, tensor.stride())
