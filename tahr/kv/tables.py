"""Page tables: where the keys and values of one sequence are."""

from collections.abc import Sequence
from typing import NamedTuple

from tahr.kv.pages import PagePool, Pages, no_pages


class PageCopy(NamedTuple):
    """A page to copy before a step, in all layers of a group: others still need the source as it is."""

    group: int
    source: int
    target: int


class PageTable:
    """The pages a sequence holds in one pool, by their place in its text.

    Those before `first` have been released, because no later token looks at them: what `pages` says there means
    nothing. `pages` only grows or is replaced by another array, so whoever has seen it can tell whether it has changed.
    """

    __slots__ = ("first", "pages", "pool")

    def __init__(self, pool: PagePool, pages: "Pages | None" = None, first: int = 0):
        self.pool = pool
        self.pages = no_pages() if pages is None else pages
        self.first = first

    def __len__(self) -> int:
        return len(self.pages) - self.first

    @property
    def held(self) -> Pages:
        return self.pages[self.first :]

    def may_write(self, place: int) -> bool:
        """Whether there is a page at that place that nobody else needs."""
        return place < len(self.pages) and self.pool.writable(self.pages[place])

    def n_missing(self, n_computed: int, begin: int, n_tokens: int) -> int:
        """Pages to take before tokens from `begin` on are written: those not there yet, and one for a shared page."""
        pool = self.pool
        n_held = len(self.pages)
        n_fresh = max(0, pool.n_wanted(n_computed, n_tokens) - n_held)
        place = begin // pool.page_size
        return n_fresh if place >= n_held or pool.writable(self.pages[place]) else n_fresh + 1

    def take(self, n_computed: int, n_tokens: int) -> None:
        """Take the pages that are not there yet."""
        n = self.pool.n_wanted(n_computed, n_tokens) - len(self.pages)
        if n > 0:
            self.pages.extend(self.pool.take(n))

    def own(self, begin: int) -> tuple[int, int] | None:
        """Replace the page of token `begin` by an own page, if others need the one that is there: (theirs, its own)."""
        place = begin // self.pool.page_size
        if place >= len(self.pages) or self.may_write(place):
            return None
        (mine,) = self.pool.take(1)
        return self.replace(place, mine), mine

    def replace(self, place: int, page: int) -> int:
        """Hold another page, which is held for it already, at that place; the page that was there."""
        before = self.pages[place]
        self.pool.release([before])
        self.pages = self.pages[:]
        self.pages[place] = page
        return before

    def release_behind(self, n_computed: int) -> None:
        """Release the pages that no token after the computed ones looks at."""
        first = self.pool.n_behind(n_computed)
        if first > self.first:
            self.pool.release(self.pages[self.first : first])
            self.first = first

    def reaches(self, n_computed: int) -> bool:
        """Whether everything is there that tokens after the first `n_computed` look at."""
        return self.first <= self.pool.n_behind(n_computed)

    def cut(self, n_pages: int) -> None:
        """Release all but the first pages of the text."""
        assert n_pages >= self.first or n_pages == 0
        self.pool.release(self.pages[max(n_pages, self.first) :])
        self.pages = self.pages[:n_pages]
        self.first = min(self.first, n_pages)

    def fork(self) -> "PageTable":
        """Another table with the same pages, for another holder."""
        self.pool.share(self.held)
        return PageTable(self.pool, self.pages[:], self.first)


def n_short(
    tables: Sequence[PageTable],
    n_computed: int,
    n_scheduled: int,
    end: int,
) -> list[tuple[int, PagePool]]:
    """How many pages each pool lacks for tokens up to `end`; only the pools that lack some."""
    lacks: list[tuple[int, PagePool]] = []
    for table in tables:
        n = table.n_missing(n_computed, n_scheduled, end) - table.pool.n_free
        if n > 0:
            lacks.append((n, table.pool))
    return lacks
