"""The page pool: which KV pages are free, who holds the others, and which are cached because a prefix may return."""

import sys
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeAlias

from tahr.errors import KvCacheFull

Pages: TypeAlias = "array[int]"  # page numbers in the order of a text


def no_pages() -> Pages:
    """The pages of an empty text."""
    return array("i")


def pages_for(n_tokens: int, page_size: int) -> int:
    """How many pages a text of so many tokens fills, the last one perhaps in part."""
    return -(-n_tokens // page_size)


class PagePool:
    """A page is free, held by one or more sequences, or cached: held by nobody, but found by its block hash.

    Or it is loading: a copy from elsewhere holds it, and until that has ended nobody may read it, write to it, share
    it, or find it.

    Cached pages can be taken like free ones: when no free page is left, the least recently released is evicted. A page
    released while a step is in flight is neither free nor cached until that step has landed, because the step may
    still touch it.

    The pages are those of the layers that share a window (0: they see everything); at most `chunk` tokens of one
    sequence are in flight at any time.
    """

    def __init__(self, n_pages: int, page_size: int, window: int = 0, chunk: int = 1, page_bytes: int = 0):
        self.n_pages = n_pages
        self.page_size = page_size
        self.page_bytes = page_bytes  # only for reports of the cache's size
        self.window = window
        self.most_held = most_held(page_size, window, chunk)
        self.n_evicted = 0
        self._free = list(range(n_pages - 1, -1, -1))
        self._holders = [0] * n_pages
        # Held by nobody; the least recently released first. A plain dict would pass all removed keys to find its first.
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._hash_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}
        self._n_launched = self._n_landed = 0  # steps
        self._leaving: dict[int, int] = {}  # held by nobody: the last step that may touch each
        self._loading: set[int] = set()

    @property
    def n_free(self) -> int:
        """Pages that can be taken."""
        return len(self._free) + len(self._cached)

    @property
    def n_leaving(self) -> int:
        """Released pages that can be taken once the steps in flight have landed."""
        return len(self._leaving)

    @property
    def n_used(self) -> int:
        """Pages that sequences hold, or that a step in flight may touch."""
        return self.n_pages - self.n_free

    @property
    def n_loading(self) -> int:
        """Pages that copies from elsewhere hold."""
        return len(self._loading)

    @property
    def n_hashed(self) -> int:
        """Pages that can be found by their block hash, held or not."""
        return len(self._hash_of)

    # ---- windows ----------------------------------------------------------------------------------------------

    def n_behind(self, n_computed: int) -> int:
        """How many pages at the beginning of a text are not looked at by any token after the computed ones."""
        return max(0, n_computed - self.window + 1) // self.page_size if self.window else 0

    def n_wanted(self, n_computed: int, n_tokens: int) -> int:
        """How many pages of a text a sequence should hold or have held: all, but for those far ahead of a window."""
        n_pages = pages_for(n_tokens, self.page_size)
        return min(n_pages, self.n_behind(n_computed) + self.most_held) if self.window else n_pages

    # ---- holding ----------------------------------------------------------------------------------------------

    def take(self, n: int) -> list[int]:
        """n pages with nothing in them, each held once."""
        if n > self.n_free:
            raise KvCacheFull(f"The KV pool has {self.n_free} free pages of {self.n_pages}, but {n} are needed.")
        while len(self._free) < n:
            self.evict()
        pages = [self._free.pop() for _ in range(n)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for each page, none of which is free."""
        for page in pages:
            assert self._holders[page] or page in self._hash_of, f"page {page} is free and cannot be shared"
            assert page not in self._loading, f"page {page} is loading and cannot be shared"
            if not self._holders[page]:
                self._cached.pop(page, None)
                self._leaving.pop(page, None)
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder fewer for each page."""
        # Tail first: when memory runs out, the end of a text is evicted before the beginning that others may share.
        for page in reversed(list(pages)):
            assert self._holders[page] > 0, f"page {page} was released twice"
            assert page not in self._loading, f"page {page} was released while it was loading"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._leave(page)

    def writable(self, page: int) -> bool:
        """Whether its holder may write to it: nobody else holds it, and nobody will look for what is in it now."""
        return self._holders[page] == 1 and page not in self._hash_of and page not in self._loading

    # ---- loading ----------------------------------------------------------------------------------------------

    def take_loading(self, n: int) -> list[int]:
        """n pages for content that is on its way to them, each held once."""
        pages = self.take(n)
        self._loading.update(pages)
        return pages

    def loaded(self, page: int, block_hash: bytes | None) -> None:
        """The copy into a page has ended: it is found by the hash of what it holds now, unless that is nothing of use
        (None) or is found already. Its holder stays."""
        self._loading.remove(page)
        if block_hash is not None and block_hash not in self._page_of:
            self.insert(page, block_hash)

    # ---- steps in flight --------------------------------------------------------------------------------------

    def launched(self) -> None:
        """A step is in flight: pages released from now on wait until it has landed."""
        self._n_launched += 1

    def landed(self) -> None:
        """The oldest step in flight has landed: nothing it may have touched has to wait any longer."""
        self._n_landed += 1
        for page in [page for page, step in self._leaving.items() if step <= self._n_landed]:
            del self._leaving[page]
            self._free_or_cache(page)

    def _leave(self, page: int) -> None:
        if self._n_launched > self._n_landed:
            self._leaving[page] = self._n_launched
        else:
            self._free_or_cache(page)

    def _free_or_cache(self, page: int) -> None:
        if page in self._hash_of:
            self._cached[page] = None
        else:
            self._free.append(page)

    # ---- block hashes -----------------------------------------------------------------------------------------

    def insert(self, page: int, block_hash: bytes) -> None:
        """Let a held page be found by the hash of its contents, also after its holders have gone."""
        assert self._holders[page] and page not in self._hash_of and block_hash not in self._page_of
        self._hash_of[page] = block_hash
        self._page_of[block_hash] = page

    def lookup(self, block_hash: bytes) -> int | None:
        """The page with these contents, if there is one."""
        return self._page_of.get(block_hash)

    def drop_hash(self, page: int) -> None:
        """Let nobody find this page any more; does nothing if nobody could."""
        block_hash = self._hash_of.pop(page, None)
        if block_hash is not None:
            del self._page_of[block_hash]
        if page in self._cached:
            del self._cached[page]
            self._free.append(page)

    def evict(self) -> bool:
        """Free the cached page that was released first, if there is one."""
        oldest = next(iter(self._cached), None)
        if oldest is None:
            return False
        self.drop_hash(oldest)
        self.n_evicted += 1
        return True

    # ---- integrity --------------------------------------------------------------------------------------------

    def check(self, held: Iterable[Iterable[int]]) -> None:
        """Every page is free, cached, leaving, or held by just the given sequences; hashes lead to pages and back."""
        counts = [0] * self.n_pages
        for pages in held:
            for page in pages:
                counts[page] += 1
        assert counts == self._holders, "page holders and reference counts disagree"
        unheld = [page for page, n in enumerate(counts) if n == 0]
        assert sorted([*self._free, *self._cached, *self._leaving]) == unheld, "a page that nobody holds was lost"
        assert all(page in self._hash_of for page in self._cached), "a cached page has no block hash"
        assert all(counts[page] == 1 and page not in self._hash_of for page in self._loading), (
            "a loading page is shared"
        )
        assert not any(page in self._hash_of for page in self._free), "a free page has a block hash"
        assert {key: page for page, key in self._hash_of.items()} == self._page_of, "hashes and pages disagree"


def most_held(page_size: int, window: int, chunk: int) -> int:
    """The most pages one sequence holds at once: its window and the chunk after it begin anywhere in a page."""
    return pages_for(window + chunk, page_size) + 1 if window else sys.maxsize
