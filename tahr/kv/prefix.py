"""The prefix cache: texts that begin alike share the pages of their common beginning.

A full page is named by a digest of its tokens and of the name of the page before it, so equal names mean equal texts
from the first token on. The first name depends on the adapter and on the request's salt: other weights make other
keys and values, and a salt keeps users from probing each other's prompts.
"""

from array import array
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from hashlib import blake2b

from tahr.kv.pages import PagePool, Pages

NAME_BYTES = 16


@dataclass(slots=True)
class PrefixStats:
    """A hit is a text that really reused pages."""

    hits: int = 0
    misses: int = 0
    tokens_reused: int = 0

    @property
    def hit_rate(self) -> float:
        looked = self.hits + self.misses
        return self.hits / looked if looked else 0.0


class PageNames:
    """The names of one text's full pages, worked out as far as somebody asked, and how many of them are stored."""

    __slots__ = ("_names", "_page_size", "n_stored")

    def __init__(self, root: bytes, page_size: int):
        self._names = [root]
        self._page_size = page_size
        self.n_stored = 0

    def of(self, tokens: ListOf[int], index: int) -> bytes:
        """The name of page `index`, which `tokens` fill; they may grow between calls but not change."""
        names, size = self._names, self._page_size
        for page in range(len(names) - 1, index + 1):
            content = array("i", tokens[page * size : (page + 1) * size])
            names.append(blake2b(names[-1] + content.tobytes(), digest_size=NAME_BYTES).digest())
        return names[index + 1]

    def cut(self, n_pages: int) -> None:
        """The text changes after this many pages."""
        del self._names[n_pages + 1 :]
        self.n_stored = min(self.n_stored, n_pages)

    def fork(self) -> "PageNames":
        """The names of another text that has been the same up to here."""
        other = PageNames(self._names[0], self._page_size)
        other._names = list(self._names)
        other.n_stored = self.n_stored
        return other


class PrefixCache:
    """Finds and stores pages by the text they hold; at most `max_pages` of the pool can be found at any time."""

    def __init__(self, pool: PagePool, page_size: int, max_pages: int | None = None):
        self.pool = pool
        self.page_size = page_size
        self.max_pages = pool.n_pages if max_pages is None else max_pages
        self.stats = PrefixStats()

    @property
    def tokens_cached(self) -> int:
        return self.pool.n_named * self.page_size

    def names(self, adapter: str = "", salt: str = "") -> PageNames:
        """Names for a text that is read with this adapter and shared only under this salt."""
        root = blake2b(f"{len(adapter)}:{adapter}{salt}".encode(), digest_size=NAME_BYTES).digest()
        return PageNames(root, self.page_size)

    def find(self, names: PageNames, tokens: ListOf[int]) -> list[int]:
        """The pages that hold the beginning of a text, as far as they are known."""
        found: list[int] = []
        for index in range(len(tokens) // self.page_size):
            page = self.pool.find(names.of(tokens, index))
            if page is None:
                break
            found.append(page)
        return found

    def count(self, n_reused: int) -> None:
        """A text has been let in, and so many of its tokens need not be computed."""
        self.stats.hits += n_reused > 0
        self.stats.misses += n_reused == 0
        self.stats.tokens_reused += n_reused

    def store(self, names: PageNames, tokens: ListOf[int], pages: Pages, n_computed: int) -> Pages:
        """Let the pages that are full now be found; returns the page table to go on with.

        Where the same text is stored already, its page takes the place of ours: no text is kept twice.
        """
        for index in range(names.n_stored, n_computed // self.page_size):
            name = names.of(tokens, index)
            twin = self.pool.find(name)
            if twin is None:
                if not self._make_place():
                    break  # nor the pages after it: without their beginning they could not be found
                self.pool.keep(pages[index], name)
            elif twin != pages[index]:
                pages = self._replace(pages, index, twin)
            names.n_stored += 1
        return pages

    def _make_place(self) -> bool:
        return self.pool.n_named < self.max_pages or (self.max_pages > 0 and self.pool.evict())

    def _replace(self, pages: Pages, index: int, twin: int) -> Pages:
        self.pool.share([twin])
        self.pool.release([pages[index]])
        replaced = pages[:]  # a page table only grows; whoever sees another table knows that pages have changed
        replaced[index] = twin
        return replaced
