"""Pages elsewhere: copies of KV pages on the host, made and brought back while steps go on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tahr.backends.api.memory import KVShape, KVStore
from tahr.backends.api.tensors import Bytes
from tahr.errors import GenerateError

PINNED_BYTES = 1 << 30  # host memory that copies may lock in place, where nobody says how much


class HostPages(Protocol):
    """Pages on the host, as the backend that stored them lays them out: only that backend can load them."""

    @property
    def n_bytes(self) -> int:
        """The memory that they take."""


class Ticket(Protocol):
    """A copy of pages under way."""

    def done(self) -> bool:
        """Whether the copy has ended. Never waits."""

    def collect(self) -> HostPages:
        """The pages on the host.

        Of a store: waits until they are there. Of a load: steps enqueued from now on see them; the host need not wait.
        """


class PageIO(Protocol):
    """Copies pages of one KV store to the host and back, behind everything enqueued before the call.

    Steps enqueued after `store` may overwrite the pages at once: the copy is of what they held. Pages being loaded
    belong to the copy: no step may read or write them until the ticket is done or collected.
    """

    def store(self, pages: Sequence[int], group: int = 0) -> Ticket:
        """Begin to copy pages of a group to the host."""

    def load(self, pages: Sequence[int], group: int, content: HostPages) -> Ticket:
        """Begin to put what `store` gave into as many pages, of any store whose pages have the same form."""


@dataclass(frozen=True, slots=True)
class PageForm:
    """What a page of a group holds: pages of equal forms can take each other's content."""

    shapes: tuple[KVShape, ...]  # of the group's layers
    page_size: int
    dtype: str

    @property
    def n_bytes(self) -> int:
        """The memory of one page."""
        return self.page_size * sum(shape.token_bytes(self.dtype) for shape in self.shapes)


def page_form(kv: KVStore, group: int) -> PageForm:
    """The form of a group's pages; states are refused."""
    if not 0 <= group < len(kv.layout.n_pages):
        raise GenerateError(
            f"There is no group {group} of layers with pages. Layers with a state have no pages to store: "
            "copy their states with `read_states` and `write_states`."
        )
    layers = zip(kv.layout.layers, kv.group_of, strict=True)
    shapes = tuple(shape for shape, its_group in layers if its_group == group and isinstance(shape, KVShape))
    return PageForm(shapes, kv.page_size, kv.dtype)


def check_pages(pages: Sequence[int], n_pages: int) -> None:
    """Refuse pages that a group does not have, and pages named twice: copies do not look where they write."""
    if len(pages) and not 0 <= min(pages) <= max(pages) < n_pages:
        raise GenerateError(
            f"Pages {min(pages)} to {max(pages)} cannot be copied: the group has pages 0 to {n_pages - 1}."
        )
    if len({*pages}) != len(pages):
        raise GenerateError("A page is named twice in one copy. Name every page once.")


def check_content(found: tuple[PageForm, int], wanted: tuple[PageForm, int]) -> None:
    """Refuse content of another form, or of another number of pages, than those that are to take it."""
    if found != wanted:
        stored, expected = (f"{n} pages of {form.n_bytes} bytes in {form.dtype}" for form, n in (found, wanted))
        raise GenerateError(
            f"The copy holds {stored}, which {expected} cannot take. Load it where it was stored, or compute the pages."
        )


@dataclass(frozen=True, slots=True)
class ExactPages:
    """Pages as `Backend.read_pages` gives them."""

    form: PageForm
    n_pages: int
    layers: Sequence[Bytes]

    @property
    def n_bytes(self) -> int:
        return self.n_pages * self.form.n_bytes


@dataclass(frozen=True, slots=True)
class EndedCopy:
    """The ticket of a copy that was made at once."""

    content: HostPages

    def done(self) -> bool:
        return True

    def collect(self) -> HostPages:
        return self.content


class PageBytes(Protocol):
    """The part of a backend that reads and writes pages at once."""

    def read_pages(self, kv: KVStore, pages: Sequence[int], group: int = 0) -> list[Bytes]: ...

    def write_pages(self, kv: KVStore, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None: ...


class PageIOAtOnce:
    """`PageIO` of any backend, by reading and writing: every copy has ended when its call returns."""

    def __init__(self, backend: PageBytes, kv: KVStore):
        self._backend = backend
        self._kv = kv

    def store(self, pages: Sequence[int], group: int = 0) -> Ticket:
        form = self._checked(pages, group)
        return EndedCopy(ExactPages(form, len(pages), self._backend.read_pages(self._kv, pages, group)))

    def load(self, pages: Sequence[int], group: int, content: HostPages) -> Ticket:
        form = self._checked(pages, group)
        assert isinstance(content, ExactPages), "content goes back to the kind of backend that stored it"
        check_content((content.form, content.n_pages), (form, len(pages)))
        if len(pages):
            self._backend.write_pages(self._kv, pages, content.layers, group)
        return EndedCopy(content)

    def _checked(self, pages: Sequence[int], group: int) -> PageForm:
        form = page_form(self._kv, group)
        check_pages(pages, self._kv.layout.n_pages[group])
        return form
