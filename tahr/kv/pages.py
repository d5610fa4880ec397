"""The page pool: which KV pages are free, who holds the others, and which are kept because they may be useful again."""

import sys
from array import array
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
    """A page is free, held by one or more sequences, or idle: held by nobody, but kept under the name of its contents.

    Idle pages are as good as free: when no free one is left, the one that has been idle longest is given away. The
    pages are those of the layers that share a window (0: they see everything); a step computes at most `chunk` tokens
    of one sequence.
    """

    def __init__(self, n_pages: int, page_size: int, window: int = 0, chunk: int = 1, page_bytes: int = 0):
        self.n_pages = n_pages
        self.page_size = page_size
        self.page_bytes = page_bytes  # only to say how much is kept
        self.window = window
        self.most_held = most_held(page_size, window, chunk)
        self.n_evicted = 0
        self._free = list(range(n_pages - 1, -1, -1))
        self._holders = [0] * n_pages
        self._idle: dict[int, None] = {}  # oldest first
        self._name_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}

    @property
    def n_free(self) -> int:
        """Pages that can be taken."""
        return len(self._free) + len(self._idle)

    @property
    def n_used(self) -> int:
        """Pages that sequences hold."""
        return self.n_pages - self.n_free

    @property
    def n_named(self) -> int:
        """Pages whose contents can be found again, held or idle."""
        return len(self._name_of)

    # ---- windows ----------------------------------------------------------------------------------------------

    def n_behind(self, n_computed: int) -> int:
        """How many pages at the beginning of a text are not looked at by any token after the computed ones."""
        return max(0, n_computed - self.window + 1) // self.page_size if self.window else 0

    def n_wanted(self, n_computed: int, n_tokens: int) -> int:
        """How many pages of a text have their place now: all, unless a window lets the later ones wait their turn."""
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
            assert self._holders[page] or page in self._idle, f"page {page} is free and cannot be shared"
            self._idle.pop(page, None)
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder fewer for each page."""
        # Tail first: when memory runs out, the end of a text is evicted before the beginning that others may share.
        for page in reversed(list(pages)):
            assert self._holders[page] > 0, f"page {page} was released twice"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._let_go(page)

    def writable(self, page: int) -> bool:
        """Whether its holder may write to it: nobody else holds it, and nobody will look for what is in it now."""
        return self._holders[page] == 1 and page not in self._name_of

    def _let_go(self, page: int) -> None:
        if page in self._name_of:
            self._idle[page] = None
        else:
            self._free.append(page)

    # ---- names ------------------------------------------------------------------------------------------------

    def keep(self, page: int, name: bytes) -> None:
        """Let a held page be found by the name of its contents, also after its holders have gone."""
        assert self._holders[page] and page not in self._name_of and name not in self._page_of
        self._name_of[page] = name
        self._page_of[name] = page

    def knows(self, name: bytes) -> bool:
        """Whether a page is kept under that name."""
        return name in self._page_of

    def find(self, name: bytes) -> int:
        """The page kept under that name."""
        return self._page_of[name]

    def forget(self, page: int) -> None:
        """Nobody shall find this page any more; does nothing if nobody could."""
        name = self._name_of.pop(page, None)
        if name is not None:
            del self._page_of[name]
        if page in self._idle:
            del self._idle[page]
            self._free.append(page)

    def evict(self) -> bool:
        """Free the page that has been idle longest, if there is one."""
        oldest = next(iter(self._idle), None)
        if oldest is None:
            return False
        self.forget(oldest)
        self.n_evicted += 1
        return True

    # ---- integrity --------------------------------------------------------------------------------------------

    def check(self, held: Iterable[Iterable[int]]) -> None:
        """Every page is free, idle, or held exactly by the given sequences; names lead to pages and back."""
        counts = [0] * self.n_pages
        for pages in held:
            for page in pages:
                counts[page] += 1
        assert counts == self._holders, "page holders and reference counts disagree"
        unheld = [page for page, n in enumerate(counts) if n == 0]
        assert sorted([*self._free, *self._idle]) == unheld, "the free and idle pages are not those that nobody holds"
        assert all(page in self._name_of for page in self._idle), "an idle page has no name"
        assert not any(page in self._name_of for page in self._free), "a free page has a name"
        assert {name: page for page, name in self._name_of.items()} == self._page_of, "names and pages disagree"


def most_held(page_size: int, window: int, chunk: int) -> int:
    """The most pages one sequence holds at once: its window and the chunk after it begin anywhere in a page."""
    return pages_for(window + chunk, page_size) + 1 if window else sys.maxsize
