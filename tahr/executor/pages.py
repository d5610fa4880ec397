"""The pages and states of a local executor, by way of its backend."""

from collections.abc import Sequence

from tahr.backends.api import (
    Backend,
    Bytes,
    Floats,
    HostPage,
    KVShape,
    KVStore,
    PageIO,
    StateShape,
    Ticket,
)
from tahr.executor.protocol import MemoryFacts
from tahr.kv.layout import LayerRows, PageLayout


class LocalPages:
    """`PagePort` of one model's memory."""

    def __init__(self, backend: Backend, kv: KVStore):
        self._backend = backend
        self._kv = kv
        self._made: PageIO | None = None  # made late: it may lock memory, which only copies need

    def read(self, pages: Sequence[int], group: int = 0) -> list[Bytes]:
        return self._backend.read_pages(self._kv, pages, group)

    def write(self, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None:
        self._backend.write_pages(self._kv, pages, layers, group)

    def read_states(self, slots: Sequence[int]) -> list[Floats]:
        return self._backend.read_states(self._kv, slots)

    def write_states(self, slots: Sequence[int], layers: Sequence[Floats]) -> None:
        self._backend.write_states(self._kv, slots, layers)

    # ---- copies on the host -----------------------------------------------------------------------------------

    def reserve(self, n_bytes: int) -> None:
        assert self._made is None, "copies were made before"
        self._made = self._backend.page_io(self._kv, n_bytes)

    def n_storable(self, n_pages: int, group: int = 0) -> int:
        return self._io.n_storable(n_pages, group)

    def store(self, pages: Sequence[int], group: int = 0) -> Ticket:
        return self._io.store(pages, group)

    def load(self, pages: Sequence[int], group: int, contents: Sequence[HostPage]) -> Ticket:
        return self._io.load(pages, group, contents)

    def blank(self, n_pages: int, group: int = 0) -> Sequence[HostPage]:
        return self._io.blank(n_pages, group)

    @property
    def _io(self) -> PageIO:
        if self._made is None:
            self._made = self._backend.page_io(self._kv)
        return self._made


def memory_facts(kv: KVStore, order: str) -> MemoryFacts:
    """Keys, values and states in numbers; `order` is that of bytes in a page."""
    states = [shape for shape in kv.layout.layers if isinstance(shape, StateShape)]
    groups = tuple(rows_of(kv, group) for group in range(len(kv.layout.n_pages)))
    layout = PageLayout(order, kv.page_size, kv.dtype, groups, tuple(shape.n_bytes for shape in states))
    return MemoryFacts(kv.n_bytes, kv.page_size, kv.dtype, tuple(shape.shape for shape in states), layout)


def rows_of(kv: KVStore, group: int) -> tuple[LayerRows, ...]:
    """Rows that the layers of a group store of a token."""
    shapes = [
        shape
        for shape, its_group in zip(kv.layout.layers, kv.group_of, strict=True)
        if its_group == group and isinstance(shape, KVShape)
    ]
    return tuple(LayerRows(0, shape.n_heads, shape.token_bytes(kv.dtype) // shape.n_heads) for shape in shapes)
