"""The prefix cache: texts that begin alike share the pages of their common beginning.

A full page is named by a digest of its tokens and of the name of the page before it, so equal names mean equal texts
from the first token on. The first name depends on the adapter and on the request's salt: other weights make other
keys and values, and a salt keeps users from probing each other's prompts.

Every pool knows its own pages by the same names. Layers with a window need only the pages that the next token looks at,
so a text can be gone on with from wherever those are known.
"""

from array import array
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from hashlib import blake2b

from tahr.kv.pages import PagePool
from tahr.kv.tables import PageTable

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
    """Finds and stores pages by the text they hold; at most `max_pages` of each pool can be found at any time."""

    def __init__(self, pools: ListOf[PagePool], max_pages: int | None = None):
        self.pools = pools
        self.page_size = pools[0].page_size
        self.max_pages = max(pool.n_pages for pool in pools) if max_pages is None else max_pages
        self.stats = PrefixStats()

    @property
    def tokens_cached(self) -> int:
        return self.pools[0].n_named * self.page_size

    @property
    def bytes_cached(self) -> int:
        return sum(pool.n_named * pool.page_bytes for pool in self.pools)

    def names(self, adapter: str = "", salt: str = "") -> PageNames:
        """Names for a text that is read with this adapter and shared only under this salt."""
        root = blake2b(f"{len(adapter)}:{adapter}{salt}".encode(), digest_size=NAME_BYTES).digest()
        return PageNames(root, self.page_size)

    def find(self, names: PageNames, tokens: ListOf[int]) -> list[PageTable]:
        """Tables that hold the beginning of a text, as much of it as every pool can serve."""
        n_pages = self._n_found(names, tokens)
        n_reused = tokens_reused(n_pages, self.page_size, len(tokens))
        return [self._hold(pool, names, tokens, n_pages, pool.n_behind(n_reused)) for pool in self.pools]

    def _n_found(self, names: PageNames, tokens: ListOf[int]) -> int:
        """The most pages to begin with: of each pool, those that the tokens after them look at are known."""
        n_found, runs = 0, [0] * len(self.pools)  # of known pages, up to the one looked at
        for n_pages in range(1, len(tokens) // self.page_size + 1):
            name = names.of(tokens, n_pages - 1)
            runs = [run + 1 if pool.knows(name) else 0 for pool, run in zip(self.pools, runs, strict=True)]
            if not runs[0] and not self.pools[0].window:
                break  # layers that see everything need every page
            n_reused = tokens_reused(n_pages, self.page_size, len(tokens))
            if all(run >= n_pages - pool.n_behind(n_reused) for pool, run in zip(self.pools, runs, strict=True)):
                n_found = n_pages
        return n_found

    def _hold(self, pool: PagePool, names: PageNames, tokens: ListOf[int], n_pages: int, first: int) -> PageTable:
        found = [pool.find(names.of(tokens, index)) for index in range(first, n_pages)]
        pool.share(found)
        return PageTable(pool, array("i", [0] * first + found), first)

    def count(self, n_reused: int) -> None:
        """A text has been let in, and so many of its tokens need not be computed."""
        self.stats.hits += n_reused > 0
        self.stats.misses += n_reused == 0
        self.stats.tokens_reused += n_reused

    def store(self, names: PageNames, tokens: ListOf[int], tables: ListOf[PageTable], n_computed: int) -> None:
        """Let the pages that are full now be found."""
        for index in range(names.n_stored, n_computed // self.page_size):
            name = names.of(tokens, index)
            kept = [self._keep(table, index, name) for table in tables]
            if not all(kept):
                break  # nor the pages after it: without their beginning they could not be found
            names.n_stored += 1

    def _keep(self, table: PageTable, place: int, name: bytes) -> bool:
        """Let one page be found; False if there is no place for its name.

        Where the same text is stored already, its page takes the place of ours: no text is kept twice.
        """
        pool = table.pool
        if pool.knows(name):
            twin = pool.find(name)
            if place >= table.first and twin != table.pages[place]:
                pool.share([twin])
                table.replace(place, twin)
        elif place >= table.first:
            if not self._make_place(pool):
                return False
            pool.keep(table.pages[place], name)
        return True

    def _make_place(self, pool: PagePool) -> bool:
        return pool.n_named < self.max_pages or (self.max_pages > 0 and pool.evict())

    def forget(self, names: PageNames, tokens: ListOf[int]) -> None:
        """Let nobody find what has been stored of a text."""
        for index in range(names.n_stored):
            name = names.of(tokens, index)
            for pool in self.pools:
                if pool.knows(name):
                    pool.forget(pool.find(name))


def tokens_reused(n_pages: int, page_size: int, n_tokens: int) -> int:
    """How many tokens of a text need not be computed if its first pages are there."""
    # The last token is computed in any case, because its logits are wanted: in a page of its own.
    return min(n_pages * page_size, n_tokens - 1)
