"""The prefix cache: texts that begin alike share the pages of their common beginning.

A full page has a block hash: a digest of its tokens and of the block hash before it, so equal hashes mean equal texts
from the first token on. The first hash depends on the adapter and on the request's salt: other weights make other
keys and values, and a salt keeps users from probing each other's prompts.

Every pool has its own pages under the same hashes. Layers with a window need only the pages that the next token looks
at, so a text can be continued from wherever those are cached. In models with states, it must be where a checkpoint is.
"""

import sys
from array import array
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from struct import Struct

from tahr.kv.checkpoints import LEAST_KEPT, StateCheckpoints
from tahr.kv.pages import PagePool
from tahr.kv.row_slots import RowSpan, spans_within
from tahr.kv.tables import PageTable

HASH_BYTES = 16
SPAN_PLACE = Struct("<qqq")


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


@cache
def page_struct(page_size: int) -> Struct:
    """The tokens of a page as bytes; it takes half the time of an array."""
    return Struct(f"{page_size}i")


class BlockHashes:
    """The block hashes of one text's full pages, as far as they were needed, and how many pages are in the cache."""

    __slots__ = ("_hashes", "_page_size", "_spans", "n_inserted")

    def __init__(self, root: bytes, page_size: int, spans: ListOf[RowSpan] = ()):
        self._hashes = [root]
        self._page_size = page_size
        self._spans = spans
        self.n_inserted = 0

    def of(self, tokens: ListOf[int], index: int) -> bytes:
        """The hash of page `index`, which `tokens` fill; they may grow between calls but not change."""
        hashes = self._hashes
        size = self._page_size
        for page in range(len(hashes) - 1, index + 1):
            content = page_struct(size).pack(*tokens[page * size : (page + 1) * size])
            if self._spans:
                content += self._rows_in(page)
            hashes.append(blake2b(hashes[-1] + content, digest_size=HASH_BYTES).digest())
        return hashes[index + 1]

    def _rows_in(self, page: int) -> bytes:
        """The rows that a page reads: of each span that touches it the digest, and where the span begins and ends."""
        begin = page * self._page_size
        touching = list(spans_within(self._spans, begin, begin + self._page_size))
        places = [(span.begin - begin, span.rows, span.first) for span in touching]
        return b"".join(SPAN_PLACE.pack(*at) + span.digest for at, span in zip(places, touching, strict=True))

    @property
    def known(self) -> ListOf[bytes]:
        """The hashes that were needed so far."""
        return self._hashes[1:]

    def cut(self, n_pages: int) -> None:
        """The text changes after this many pages."""
        del self._hashes[n_pages + 1 :]
        self.n_inserted = min(self.n_inserted, n_pages)

    def fork(self) -> "BlockHashes":
        """The hashes of another text that has been the same up to here."""
        other = BlockHashes(self._hashes[0], self._page_size, self._spans)
        other._hashes = list(self._hashes)
        other.n_inserted = self.n_inserted
        return other


class PrefixCache:
    """Finds and stores pages by the text they hold; at most `max_pages` of each pool can be found at any time."""

    def __init__(
        self,
        pools: ListOf[PagePool],
        max_pages: int | None = None,
        checkpoints: StateCheckpoints | None = None,
        max_text_tokens: int | None = None,
    ):
        self.pools = pools
        self.checkpoints = checkpoints  # None: no layer has a state
        self.page_size = pools[0].page_size
        self.max_pages = max(pool.n_pages for pool in pools) if max_pages is None else max_pages
        self.max_text_tokens = sys.maxsize if max_text_tokens is None else max_text_tokens
        self.stats = PrefixStats()

    @property
    def tokens_cached(self) -> int:
        return self.pools[0].n_hashed * self.page_size

    @property
    def bytes_cached(self) -> int:
        paged = sum(pool.n_hashed * pool.page_bytes for pool in self.pools)
        return paged + (self.checkpoints.n_bytes if self.checkpoints else 0)

    def hashes(self, adapter: str = "", salt: str = "", spans: ListOf[RowSpan] = ()) -> BlockHashes:
        """Hashes for a text that is computed with this adapter and these rows, and shared only under this salt."""
        root = blake2b(f"{len(adapter)}:{adapter}{salt}".encode(), digest_size=HASH_BYTES).digest()
        return BlockHashes(root, self.page_size, spans)

    def n_reused(self, hashes: BlockHashes, tokens: ListOf[int]) -> int:
        """How many tokens of a text would not be computed if it began now."""
        return tokens_reused(self._n_found(hashes, tokens), self.page_size, len(tokens))

    def lookup(self, hashes: BlockHashes, tokens: ListOf[int]) -> list[PageTable]:
        """Tables that hold the beginning of a text, as much of it as every pool can serve."""
        n_pages = self._n_found(hashes, tokens)
        n_reused = tokens_reused(n_pages, self.page_size, len(tokens))
        return [self._hold(pool, hashes, tokens, n_pages, pool.n_behind(n_reused)) for pool in self.pools]

    def _n_found(self, hashes: BlockHashes, tokens: ListOf[int], ignore_states: bool = False) -> int:
        """The most pages to begin with: of each pool, those that the tokens after them look at are cached; so is the
        state after them, where layers have one and it is not ignored.
        """
        # of cached pages, up to the present one
        n_found = 0
        runs = [0] * len(self.pools)
        for n_pages in range(1, len(tokens) // self.page_size + 1):
            block_hash = hashes.of(tokens, n_pages - 1)
            found = [pool.lookup(block_hash) is not None for pool in self.pools]
            runs = [run + 1 if here else 0 for here, run in zip(found, runs, strict=True)]
            if not runs[0] and not self.pools[0].window:
                break  # layers that see everything need every page
            n_reused = tokens_reused(n_pages, self.page_size, len(tokens))
            if not (ignore_states or self._has_state(block_hash, n_pages, n_reused)):
                continue
            if all(run >= n_pages - pool.n_behind(n_reused) for pool, run in zip(self.pools, runs, strict=True)):
                n_found = n_pages
        return n_found

    def _has_state(self, block_hash: bytes, n_pages: int, n_reused: int) -> bool:
        """Whether a text can go on after so many pages, as far as states go: they cannot go back by a token."""
        if self.checkpoints is None:
            return True
        return block_hash in self.checkpoints and n_reused == n_pages * self.page_size

    def _hold(self, pool: PagePool, hashes: BlockHashes, tokens: ListOf[int], n_pages: int, first: int) -> PageTable:
        found = [pool.lookup(hashes.of(tokens, index)) for index in range(first, n_pages)]
        pages = [page for page in found if page is not None]
        assert len(pages) == len(found), "a page that was found is gone"
        pool.share(pages)
        return PageTable(pool, array("i", [0] * first + pages), first)

    def count(self, n_reused: int) -> None:
        """Count a lookup whose text was admitted: so many of its tokens need not be computed."""
        self.stats.hits += n_reused > 0
        self.stats.misses += n_reused == 0
        self.stats.tokens_reused += n_reused

    def insert(self, hashes: BlockHashes, tokens: ListOf[int], tables: ListOf[PageTable], n_computed: int) -> None:
        """Let the pages that are full now be found."""
        for index in range(hashes.n_inserted, min(n_computed, self.max_text_tokens) // self.page_size):
            block_hash = hashes.of(tokens, index)
            inserted = [self._insert_page(table, index, block_hash) for table in tables]
            if not all(inserted):
                break  # nor the pages after it: without their beginning they could not be found
            hashes.n_inserted += 1

    def _insert_page(self, table: PageTable, place: int, block_hash: bytes) -> bool:
        """Let one page be found; False if the cache is full.

        If the same text is cached already, its page replaces ours: no text is cached twice.
        """
        pool = table.pool
        twin = pool.lookup(block_hash)
        if twin is not None:
            if place >= table.first and twin != table.pages[place]:
                pool.share([twin])
                table.replace(place, twin)
        elif place >= table.first:
            if not self.make_place(pool):
                return False
            pool.insert(table.pages[place], block_hash)
        return True

    def make_place(self, pool: PagePool) -> bool:
        """Whether one more page of a pool may be found; another is evicted for it where that must be."""
        return pool.n_hashed < self.max_pages or (self.max_pages > 0 and pool.evict())

    def remove(self, hashes: BlockHashes, tokens: ListOf[int]) -> None:
        """Let nobody find what has been inserted of a text."""
        for index in range(hashes.n_inserted):
            block_hash = hashes.of(tokens, index)
            for pool in self.pools:
                page = pool.lookup(block_hash)
                if page is not None:
                    pool.drop_hash(page)
        if self.checkpoints is not None:
            for block_hash in hashes.known:
                self.checkpoints.remove(block_hash)

    # ---- states -----------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Let nobody find anything; pages that sequences hold stay theirs."""
        for pool in self.pools:
            while pool.evict():
                pass
        if self.checkpoints:
            self.checkpoints.clear()

    def checkpoints_in(self, hashes: BlockHashes, tokens: ListOf[int], n_reused: int) -> tuple[int, ...]:
        """Where the state of a text is worth keeping: after its last full page, and at the end of what it has in common
        with another text, since more texts may begin like that.
        """
        n_most = (len(tokens) - 1) // self.page_size
        n_common = min(n_most, self._n_found(hashes, tokens, ignore_states=True))
        positions = {n_common * self.page_size, n_most * self.page_size}
        return tuple(sorted(at for at in positions if at > n_reused and at >= LEAST_KEPT))

    def insert_state(self, hashes: BlockHashes, tokens: ListOf[int], n_computed: int, slot: int) -> None:
        """Keep the state that a slot has after so many tokens of a text."""
        assert self.checkpoints is not None
        self.checkpoints.insert(hashes.of(tokens, n_computed // self.page_size - 1), slot)

    def restore_state(self, hashes: BlockHashes, tokens: ListOf[int], n_reused: int, slot: int) -> None:
        """Let a slot begin with the state after so many tokens that `lookup` has found; 0: with nothing."""
        assert self.checkpoints is not None
        if n_reused:
            self.checkpoints.restore(hashes.of(tokens, n_reused // self.page_size - 1), slot)


def tokens_reused(n_pages: int, page_size: int, n_tokens: int) -> int:
    """How many tokens of a text need not be computed if its first pages are there."""
    # The last token is computed in any case, because its logits are wanted: in a page of its own.
    return min(n_pages * page_size, n_tokens - 1)
