"""The page pool: which KV pages are free, and how many sequences hold each of the others."""

from collections.abc import Iterable

from tahr.errors import KvCacheFull


class PagePool:
    """Hands out page numbers in O(1); a page goes back to the pool when its last holder drops it."""

    def __init__(self, n_pages: int):
        self.n_pages = n_pages
        self._free = list(range(n_pages - 1, -1, -1))
        self._holders = [0] * n_pages

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_used(self) -> int:
        return self.n_pages - len(self._free)

    def take(self, n: int) -> list[int]:
        """n fresh pages, each held once."""
        if n > len(self._free):
            raise KvCacheFull(f"The KV pool has {len(self._free)} free pages of {self.n_pages}, but {n} are needed.")
        pages = [self._free.pop() for _ in range(n)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for each page."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is free and cannot be shared"
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder fewer for each page, the last page first: the beginning of a text is what others may share."""
        for page in reversed(list(pages)):
            assert self._holders[page] > 0, f"page {page} was released twice"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._free.append(page)

    def check(self, held: Iterable[Iterable[int]]) -> None:
        """Every page is either free or held exactly by the given sequences."""
        counts = [0] * self.n_pages
        for pages in held:
            for page in pages:
                counts[page] += 1
        assert counts == self._holders, "page holders and reference counts disagree"
        free = sorted(self._free)
        assert free == [page for page, n in enumerate(counts) if n == 0], "the free list and the counts disagree"
