"""Row slots: where rows that are no embeddings lie on the device, by the digest of what they were computed from."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from operator import attrgetter
from typing import NamedTuple

from tahr.kv.pages import PagePool, pages_for


class RowSpan(NamedTuple):
    """Placeholders of a prompt, in whose places rows are read.

    The digest is of everything that the rows and their positions for rope depend on: of the bytes they were made of, of
    how these were prepared, and of what computed them. Equal digests mean equal rows.
    """

    begin: int  # the position of the first placeholder
    rows: int
    digest: bytes
    first: int = 0  # row of the content that the first placeholder reads
    total: int = 0  # rows of the content; 0: the span reads all of them

    @property
    def n_content(self) -> int:
        return self.total or self.rows

    @property
    def end(self) -> int:
        return self.begin + self.rows


def spans_within(spans: Sequence[RowSpan], begin: int, end: int) -> Iterator[RowSpan]:
    """The spans, of some in order, that touch these places."""
    first = bisect_right(spans, begin, key=attrgetter("end"))
    return takewhile(lambda span: span.begin < end, islice(spans, first, None))


class InputPages(NamedTuple):
    """The pages of inputs whose rows all tokens of a sequence look at: a slot has as many as an input needs."""

    n_rows: int  # rows of an input
    page_size: int

    @property
    def n_pages(self) -> int:
        return pages_for(self.n_rows, self.page_size)

    def of(self, slot: int) -> range:
        """The pages of a slot."""
        return range(slot * self.n_pages, (slot + 1) * self.n_pages)

    def places(self, slot: int) -> range:
        """Where the rows of an input lie that has a slot."""
        begin = slot * self.n_pages * self.page_size
        return range(begin, begin + self.n_rows)


@dataclass(slots=True)
class StoredRows:
    """The slots of one content, in the order of its rows."""

    slots: list[int]
    n_holders: int = 0
    is_ready: bool = False  # steps that are launched from now on find the rows


class RowSlots:
    """Content is held by sequences that may still compute its rows, or cached: then it may be dropped for other
    content, the least recently released first, and is computed again when it is needed.

    Like pages, slots that were given back while a step is in flight are not taken again before it has landed.
    """

    def __init__(self, n_slots: int, row_bytes: int = 0, pages: InputPages | None = None):
        self.n_slots = n_slots
        self.pages = pages  # pages of a slot that holds a whole input; None: a slot holds one row
        self.row_bytes = row_bytes  # only to report how much is stored
        self.n_dropped = 0  # contents
        self._pool = PagePool(n_slots, page_size=1)
        self._stored: dict[bytes, StoredRows] = {}
        self._cached: OrderedDict[bytes, None] = OrderedDict()  # held by nobody

    @property
    def n_used(self) -> int:
        """Slots with content, or which a step in flight may touch."""
        return self._pool.n_used

    @property
    def n_held(self) -> int:
        """Slots whose content sequences hold."""
        return sum(len(found.slots) for found in self._stored.values() if found.n_holders)

    def is_ready(self, digest: bytes) -> bool:
        """Whether rows are there that a step can read."""
        return digest in self._stored and self._stored[digest].is_ready

    def hold(self, contents: Mapping[bytes, int]) -> bool:
        """One more holder for each content, given with its number of rows; False, and nothing changes, without slots
        for all of them. What is not here gets slots, and is to be computed: see `ready`."""
        missing = {digest: n for digest, n in contents.items() if digest not in self._stored}
        if not self._make_place(sum(missing.values()), needed=contents):
            return False
        for digest, n in missing.items():
            self._stored[digest] = StoredRows(self._pool.take(n))
        for digest, n in contents.items():
            found = self._stored[digest]
            assert len(found.slots) == n, "one digest stands for different numbers of rows"
            found.n_holders += 1
            self._cached.pop(digest, None)
        return True

    def targets(self, digest: bytes) -> list[int]:
        """Where rows go that are being computed; nowhere, if nobody has waited for them."""
        found = self._stored.get(digest)
        if found and self.pages:
            return [place for slot in found.slots for place in self.pages.places(slot)]
        return found.slots if found else []

    def ready(self, digest: bytes) -> None:
        """Rows are computed by what was launched so far, if anybody has waited for them."""
        if digest in self._stored:
            self._stored[digest].is_ready = True

    def release(self, digest: bytes) -> None:
        """One holder fewer. Content that is ready stays as long as nothing else needs its slots."""
        found = self._stored[digest]
        assert found.n_holders > 0, "rows were released twice"
        found.n_holders -= 1
        if found.n_holders:
            return
        if found.is_ready:
            self._cached[digest] = None
        else:
            self._drop(digest)

    def slots(self, digest: bytes) -> list[int]:
        """The slots of rows that are held."""
        found = self._stored[digest]
        assert found.n_holders, "rows that nobody holds may be dropped at any time"
        return found.slots

    def launched(self) -> None:
        self._pool.launched()

    def landed(self) -> None:
        self._pool.landed()

    def check(self, held: Iterable[Iterable[bytes]]) -> None:
        """Every slot is free, leaving, or of one content, which just the given sequences hold."""
        counts = dict.fromkeys(self._stored, 0)
        for digests in held:
            for digest in digests:
                counts[digest] += 1
        assert counts == {digest: found.n_holders for digest, found in self._stored.items()}, "holders disagree"
        assert {digest for digest, n in counts.items() if not n} == self._cached.keys(), "unheld rows are not cached"
        assert all(self._stored[digest].is_ready for digest in self._cached), "cached rows were never computed"
        self._pool.check(found.slots for found in self._stored.values())

    def _make_place(self, n: int, needed: Mapping[bytes, int]) -> bool:
        """Drop cached content until n slots are free, but for what is needed; False if that is not enough."""
        droppable = [digest for digest in self._cached if digest not in needed]
        if n > self._pool.n_free + sum(len(self._stored[digest].slots) for digest in droppable):
            return False
        for digest in droppable:
            if n <= self._pool.n_free:
                break
            self._drop(digest)
            self.n_dropped += 1
        return n <= self._pool.n_free  # slots may have to wait for a step in flight

    def _drop(self, digest: bytes) -> None:
        self._cached.pop(digest, None)
        self._pool.release(self._stored.pop(digest).slots)
