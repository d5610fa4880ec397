"""The places that pages have outside the pools, and whether using them pays."""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from tahr.executor.protocol import PagePort
from tahr.kv.pages import PagePool
from tahr.kv.prefix import PrefixCache
from tahr.kv.store import BoundedStore
from tahr.kv.tiers.disk import DiskTier
from tahr.kv.tiers.page_files import KvFile

Key = tuple[int, bytes]  # group and block hash
Host = BoundedStore[Key, Any]
SHUNNED_S = 30.0  # time for which a disk that was late is not asked
LEAST_TIMED = 1 << 24  # bytes; smaller copies do not tell how quick the way from the host is
FORGOTTEN = 0.95  # share of the quickest copy that the next one leaves of it


class Pace(Protocol):
    """How long computing takes."""

    @property
    def token_s(self) -> float:
        """Seconds of a prompt's token; 0: not known yet."""


@dataclass(slots=True)
class TierStats:
    """Counts of what has become of pages since the start."""

    n_stored: int = 0
    n_dropped: int = 0  # pages not stored for want of memory to copy them to
    n_loaded: int = 0
    loaded_bytes: int = 0
    bytes_per_s: float = 0.0  # rate from the host to the pools; 0: not known yet

    def count_load(self, n_pages: int, n_bytes: int, seconds: float) -> None:
        """Count pages that have come. Steps that ran meanwhile make copies look slow: the quickest ones count."""
        self.n_loaded += n_pages
        self.loaded_bytes += n_bytes
        if n_bytes >= LEAST_TIMED:
            self.bytes_per_s = max(FORGOTTEN * self.bytes_per_s, n_bytes / max(seconds, 1e-9))


@dataclass(slots=True)
class Places:
    """The pools of an engine, and what is behind them."""

    port: PagePort
    prefix: PrefixCache
    pace: Pace
    n_run: int  # pages of a file
    host: Host | None
    disk: DiskTier | None
    stats: TierStats
    shunned_until: float = 0.0
    # Groups of which a text needs every page: all without a window, or the widest window where all have one.
    needed: ListOf[tuple[int, PagePool]] = field(init=False)

    def __post_init__(self) -> None:
        groups = list(enumerate(self.prefix.pools))
        self.needed = [each for each in groups if not each[1].window] or groups[:1]

    @property
    def disk_pays(self) -> bool:
        """Whether reading a token's keys and values is quicker than computing them, as far as both are known."""
        disk = self.disk
        is_fine = disk is not None and not disk.off and perf_counter() >= self.shunned_until
        return is_fine and self._pays(disk.bytes_per_s if disk else 0.0)

    @property
    def host_pays(self) -> bool:
        return self.host is not None and self._pays(self.stats.bytes_per_s)

    def _pays(self, bytes_per_s: float) -> bool:
        token_s = self.pace.token_s
        return not (bytes_per_s and token_s) or self.token_bytes / bytes_per_s < token_s

    @property
    def token_bytes(self) -> float:
        """Bytes of keys and values that are loaded for each token of a long text."""
        return sum(pool.page_bytes for _, pool in self.needed) / self.prefix.page_size

    def shun_disk(self) -> None:
        """A disk was late: compute for a while what it may have."""
        assert self.disk
        self.disk.stats.n_late += 1
        self.shunned_until = perf_counter() + SHUNNED_S

    def in_pools(self, block_hash: bytes) -> bool:
        """Whether layers that see everything have a page already."""
        return all(pool.lookup(block_hash) is not None for _, pool in self.needed)

    def in_host(self, block_hash: bytes) -> bool:
        """Whether the host has what those layers lack."""
        host = self.host
        return host is not None and all(
            pool.lookup(block_hash) is not None or (group, block_hash) in host for group, pool in self.needed
        )


class HostCopy(NamedTuple):
    """Pages of a group on their way to the host."""

    group: int
    hashes: list[bytes]
    ticket: Any


class PlannedFile(NamedTuple):
    """A file of pages that are on their way: its pages, of which groups, and perhaps the state after them."""

    which: KvFile
    hashes: ListOf[bytes]
    groups: ListOf[int]


class CopiedPages:
    """Pages on their way to the host, by group and block hash, and the files that are to be made of them."""

    def __init__(self) -> None:
        self.is_void = False  # nobody may use them
        self.files: list[PlannedFile] = []
        self._copies: list[HostCopy] = []
        self._pages: dict[Key, Any] = {}
        self._keys: set[Key] = set()

    def add(self, group: int, hashes: list[bytes], ticket: Any) -> None:
        """Have pages that a ticket will give."""
        self._copies.append(HostCopy(group, hashes, ticket))
        self._keys.update((group, block_hash) for block_hash in hashes)

    def put(self, key: Key, page: Any) -> None:
        """Have a page that is on the host already."""
        self._pages[key] = page
        self._keys.add(key)

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    @property
    def keys(self) -> set[Key]:
        return self._keys

    def done(self) -> bool:
        return all(copy.ticket.done() for copy in self._copies)

    def collect(self) -> dict[Key, Any]:
        """All pages; waits until they are there."""
        arrived = dict(self._pages)
        for copy in self._copies:
            for block_hash, page in zip(copy.hashes, copy.ticket.collect(), strict=True):
                arrived[copy.group, block_hash] = page
        return arrived
