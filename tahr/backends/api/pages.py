"""Pages elsewhere: copies of KV pages and states on the host, made and brought back while steps go on."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tahr.backends.api.memory import KVShape, KVStore, LayerShape
from tahr.backends.api.tensors import Bytes, Floats
from tahr.errors import GenerateError

PINNED_BYTES = 1 << 30  # host memory that copies may lock in place, where nobody says how much
STATES = -1  # the group of the layers with a state; its pages are the slots of their states
BY_TOKEN = "tokens"  # the order of bytes in pages that `PageIOAtOnce` copies


class HostPage(Protocol):
    """A page on the host, as the backend that stored it lays it out: only that kind of backend can load it."""

    @property
    def n_bytes(self) -> int:
        """The memory that it takes."""

    @property
    def data(self) -> Bytes:
        """Its bytes, which may be written to disk, or filled with what was: the order is the backend's `page_order`."""


class Ticket(Protocol):
    """A copy of pages under way."""

    def done(self) -> bool:
        """Whether the copy has ended. Never waits."""

    def collect(self) -> Sequence[HostPage]:
        """The pages on the host.

        Of a store: waits until they are there. Of a load: steps enqueued from now on see them; the host need not wait.
        """


class PageIO(Protocol):
    """Copies pages of one KV store to the host and back, behind everything enqueued before the call.

    Steps enqueued after `store` may overwrite the pages at once: the copy is of what they held. Pages being loaded
    belong to the copy: no step may read or write them until the ticket is done or collected.
    """

    def n_storable(self, n_pages: int, group: int = 0) -> int:
        """How many pages can be stored without waiting for memory of the host, at most as many as are asked for."""

    def store(self, pages: Sequence[int], group: int = 0) -> Ticket:
        """Begin to copy pages of a group to the host."""

    def load(self, pages: Sequence[int], group: int, contents: Sequence[HostPage]) -> Ticket:
        """Begin to put what `store` gave into as many pages, of any store whose pages have the same form."""

    def blank(self, n_pages: int, group: int = 0) -> Sequence[HostPage]:
        """Pages on the host for bytes from elsewhere; what they hold at first means nothing."""


@dataclass(frozen=True, slots=True)
class PageForm:
    """Form of a page of a group: pages of equal forms can take each other's content."""

    shapes: tuple[LayerShape, ...]  # shapes of the group's layers
    page_size: int
    dtype: str

    @property
    def sizes(self) -> list[int]:
        """The bytes of a page by layer."""
        return [
            self.page_size * shape.token_bytes(self.dtype) if isinstance(shape, KVShape) else shape.n_bytes
            for shape in self.shapes
        ]

    @property
    def n_bytes(self) -> int:
        """The memory of one page."""
        return sum(self.sizes)


def page_form(kv: KVStore, group: int) -> PageForm:
    """The form of a group's pages, or of states; a group without layers is refused."""
    layers = zip(kv.layout.layers, kv.group_of, strict=True)
    shapes = tuple(shape for shape, its_group in layers if its_group == group)
    if not shapes:
        raise GenerateError(f"There is no group {group} of layers with pages or states.")
    return PageForm(shapes, kv.page_size, kv.dtype)


def n_pages_of(kv: KVStore, group: int) -> int:
    """The pages of a group, or the slots of states."""
    return kv.layout.n_slots if group == STATES else kv.layout.n_pages[group]


def check_pages(pages: Sequence[int], n_pages: int) -> None:
    """Refuse pages that a group does not have, and pages named twice: copies do not look where they write."""
    if len(pages) and not 0 <= min(pages) <= max(pages) < n_pages:
        raise GenerateError(
            f"Pages {min(pages)} to {max(pages)} cannot be copied: the group has pages 0 to {n_pages - 1}."
        )
    if len({*pages}) != len(pages):
        raise GenerateError("A page is named twice in one copy. Name every page once.")


def check_contents(forms: Sequence[PageForm], wanted: tuple[PageForm, int]) -> None:
    """Refuse content of another form, or of another number of pages, than those that are to take it."""
    form, n_pages = wanted
    odd = next((found for found in forms if found != form), form)
    if odd != form or len(forms) != n_pages:
        counts = [(odd, len(forms)), wanted]
        stored, expected = (f"{n} pages of {each.n_bytes} bytes in {each.dtype}" for each, n in counts)
        raise GenerateError(
            f"The copy holds {stored}, which {expected} cannot take. Load it where it was stored, or compute the pages."
        )


@dataclass(frozen=True, slots=True)
class PlainPage:
    """A page in memory of the host that is like any other."""

    form: PageForm
    data: Bytes

    @property
    def n_bytes(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class EndedCopy:
    """The ticket of a copy that was made at once."""

    contents: Sequence[HostPage]

    def done(self) -> bool:
        return True

    def collect(self) -> Sequence[HostPage]:
        return self.contents


class PageBytes(Protocol):
    """The part of a backend that reads and writes pages and states at once."""

    def read_pages(self, kv: KVStore, pages: Sequence[int], group: int = 0) -> list[Bytes]: ...

    def write_pages(self, kv: KVStore, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None: ...

    def read_states(self, kv: KVStore, slots: Sequence[int]) -> list[Floats]: ...

    def write_states(self, kv: KVStore, slots: Sequence[int], layers: Sequence[Floats]) -> None: ...


class PlainPageIO(ABC):
    """`PageIO` with plain memory, where every copy has ended when its call returns."""

    def __init__(self, kv: KVStore):
        self.kv = kv
        self._forms: dict[int, PageForm] = {}

    def n_storable(self, n_pages: int, group: int = 0) -> int:
        return n_pages

    def store(self, pages: Sequence[int], group: int = 0) -> Ticket:
        form = self._checked(pages, group)
        contents = [PlainPage(form, np.empty(form.n_bytes, np.uint8)) for _ in pages]
        if contents:
            self.read(pages, group, [page.data for page in contents])
        return EndedCopy(contents)

    def load(self, pages: Sequence[int], group: int, contents: Sequence[HostPage]) -> Ticket:
        form = self._checked(pages, group)
        plain = [page for page in contents if isinstance(page, PlainPage)]
        assert len(plain) == len(contents), "content goes back to the kind of backend that stored it"
        check_contents([page.form for page in plain], (form, len(pages)))
        if plain:
            self.write(pages, group, [page.data for page in plain])
        return EndedCopy(plain)

    def blank(self, n_pages: int, group: int = 0) -> Sequence[HostPage]:
        form = self._checked((), group)
        return [PlainPage(form, np.empty(form.n_bytes, np.uint8)) for _ in range(n_pages)]

    @abstractmethod
    def read(self, pages: Sequence[int], group: int, contents: Sequence[Bytes]) -> None:
        """Copy pages of a group into as many runs of bytes."""

    @abstractmethod
    def write(self, pages: Sequence[int], group: int, contents: Sequence[Bytes]) -> None:
        """The reverse of `read`."""

    def _checked(self, pages: Sequence[int], group: int) -> PageForm:
        form = self._forms.get(group)
        if form is None:
            form = self._forms[group] = page_form(self.kv, group)
        check_pages(pages, n_pages_of(self.kv, group))
        return form


class PageIOAtOnce(PlainPageIO):
    """`PageIO` of any backend, by reading and writing."""

    def __init__(self, backend: PageBytes, kv: KVStore):
        super().__init__(kv)
        self._backend = backend

    def read(self, pages: Sequence[int], group: int, contents: Sequence[Bytes]) -> None:
        if group == STATES:
            states = self._backend.read_states(self.kv, pages)
            layers = [np.ascontiguousarray(state).view(np.uint8) for state in states]
        else:
            layers = self._backend.read_pages(self.kv, pages, group)
        for span, layer in zip(self._spans(group), layers, strict=True):
            for data, part in zip(contents, layer.reshape(len(pages), -1), strict=True):
                data[span] = part

    def write(self, pages: Sequence[int], group: int, contents: Sequence[Bytes]) -> None:
        parts = [np.stack([data[span] for data in contents]) for span in self._spans(group)]
        shapes = self._forms[group].shapes
        if group == STATES:
            states = [
                part.view(np.float32).reshape(len(pages), *shape.shape)
                for part, shape in zip(parts, shapes, strict=True)
                if not isinstance(shape, KVShape)
            ]
            self._backend.write_states(self.kv, pages, states)
            return
        n_tokens = len(pages) * self.kv.page_size
        layers = [
            part.reshape(n_tokens, shape.n_heads, -1)
            for part, shape in zip(parts, shapes, strict=True)
            if isinstance(shape, KVShape)
        ]
        self._backend.write_pages(self.kv, pages, layers, group)

    def _spans(self, group: int) -> list[slice]:
        """Where the bytes of each layer lie in a page."""
        return spans_of(self._forms[group].sizes)


def spans_of(sizes: Sequence[int]) -> list[slice]:
    """Runs of bytes, one behind the other."""

    def spans() -> Iterator[slice]:
        begin = 0
        for size in sizes:
            yield slice(begin, begin + size)
            begin += size

    return list(spans())
