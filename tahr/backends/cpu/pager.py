"""Matrices of the CPU backend that lie in their file and are read into slots of memory as steps need them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

from tahr import _native as native
from tahr.backends.api import Linear
from tahr.backends.cpu.queue import Queue
from tahr.backends.cpu.slots import SlotMemory
from tahr.backends.cpu.weights import PackedMatrix, stack_shape
from tahr.errors import ConfigError
from tahr.offload.homes import Panels
from tahr.weights.tensor import HostTensor


def panels_of(tensor: HostTensor, isa: str) -> Panels | None:
    """The panels of a matrix that lies in its file as it is multiplied."""
    name = tensor.format.name
    if tensor.source is None or tensor.source.file is None or not native.has_format(name):
        return None
    n_pieces, n_rows, n_cols = stack_shape(tensor.shape)
    n_bytes = native.panel_bytes(name, isa, n_cols)
    n_panels = native.packed_bytes(name, isa, 1, n_rows, n_cols) // n_bytes
    return Panels(n_pieces, n_panels, n_bytes, len(tensor.shape) > 2)


class PagedMatrix(PackedMatrix):
    """A matrix, or a stack of such, whose panels are in memory only while steps need them."""

    def __init__(self, host: HostTensor, isa: str, pool: native.Pool, slots: SlotMemory):
        self.slots = slots
        self.first_piece = 0
        super().__init__(host, isa, pool)
        self.kernel += ", paged"

    @cached_property
    def packed(self) -> native.Matrix:
        """The matrix without its panels."""
        offset = self.host.file_offset
        if offset is None or self.host.source is None or self.host.source.file is None or not self.native:
            raise ConfigError(
                f"{self.host.name} cannot be read from its file as it is, so it cannot be paged: raise ram_budget, or "
                "convert the model to GGUF."
            )
        file = self.slots.number_of(self.host.source.file)
        n_bytes = self.host.n_bytes // self.shape[0]
        places = [(file, offset + i * n_bytes, n_bytes) for i in range(self.shape[0])]
        matrix, self.first_piece = self.slots.native.add(self.format, self.isa, *self.shape, places)
        return matrix


Pieces = list[tuple[int, int, int]]  # the first piece, how many there are, and the starts of experts or 0


def pieces_of(linears: Sequence[Linear], starts: int) -> dict[SlotMemory, Pieces]:
    """The pieces of those of the linears that are paged, by arena."""
    found: dict[SlotMemory, Pieces] = {}
    for linear in linears:
        matrix = linear.weight.data
        if isinstance(matrix, PagedMatrix):
            matrix.packed  # noqa: B018  (it gives the pieces their numbers)
            found.setdefault(matrix.slots, []).append((matrix.first_piece, matrix.shape[0], starts))
    return found


@contextmanager
def awaited(queue: Queue, linears: Sequence[Linear], starts: int = 0, soon: Sequence[Linear] = ()) -> Iterator[None]:
    """Ops enqueued within find the panels of these linears in memory; those that come `soon` are read meanwhile."""
    pieces = pieces_of(linears, starts)
    later = pieces_of(soon, starts)
    for slots, some in pieces.items():
        queue.slots[id(slots)] = slots
        queue.tape.await_pieces(pager=slots.native, pieces=some, soon=later.get(slots, []))
    yield
    for slots, some in pieces.items():
        queue.tape.release_pieces(pager=slots.native, pieces=some)
