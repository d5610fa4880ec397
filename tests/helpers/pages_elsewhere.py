"""Pages of an engine's prefix cache that are kept in a bounded store on the host: what a policy will do, by hand."""

from collections.abc import Iterable
from typing import NamedTuple

from tahr.backends.api import HostPage, Ticket
from tahr.engine.engine import Engine
from tahr.kv.pages import PagePool
from tahr.kv.prefix import BlockHashes
from tahr.kv.store import BoundedStore

Key = tuple[int, bytes]  # group and block hash


class Loading(NamedTuple):
    """Pages on their way into a pool."""

    pool: PagePool
    pages: list[int]
    hashes: list[bytes]
    ticket: Ticket


class Elsewhere:
    """Sends cached pages to the host and brings them back, while the engine's steps go on."""

    def __init__(self, eng: Engine, max_bytes: int = 1 << 24):
        self._port = eng.executor.pages
        self._pools = eng.scheduler.pools
        self.store: BoundedStore[Key, HostPage] = BoundedStore(max_bytes)
        self._leaving: list[tuple[int, list[bytes], Ticket]] = []
        self._loading: list[Loading] = []

    @property
    def is_sending(self) -> bool:
        """Whether copies to the host may not have ended."""
        return bool(self._leaving)

    @property
    def loading_pages(self) -> list[list[int]]:
        """What copies hold, by pool."""
        return [[page for each in self._loading if each.pool is pool for page in each.pages] for pool in self._pools]

    def send(self, hashes: BlockHashes) -> int:
        """Copy what is cached of a text to the host; from here on others may write to its pages."""
        n_sent = 0
        for group, pool in enumerate(self._pools):
            found = {key: page for key in hashes.known if (page := pool.lookup(key)) is not None}
            self._leaving.append((group, list(found), self._port.store(list(found.values()), group)))
            for page in found.values():
                pool.drop_hash(page)
            n_sent += len(found)
        return n_sent

    def keep(self) -> None:
        """Put into the store what has arrived."""
        for group, keys, ticket in self._leaving:
            for key, page in zip(keys, ticket.collect(), strict=True):
                assert self.store.put((group, key), page)
        self._leaving.clear()
        self.store.check()

    def bring(self, hashes: Iterable[bytes]) -> int:
        """Begin to load what the store has of a text."""
        n_brought = 0
        for group, pool in enumerate(self._pools):
            found = [(key, page) for key in hashes if (page := self.store.get((group, key)))]
            contents = [page for _, page in found]
            pages = pool.take_loading(len(found))
            ticket = self._port.load(pages, group, contents)
            self._loading.append(Loading(pool, pages, [key for key, _ in found], ticket))
            n_brought += len(found)
        return n_brought

    def land(self, fails: bool = False) -> bool:
        """Let pages be found whose copy has ended, or nobody find them; whether none is on its way any more."""
        for each in [each for each in self._loading if each.ticket.done()]:
            self._loading.remove(each)
            for page, key in zip(each.pages, each.hashes, strict=True):
                each.pool.loaded(page, None if fails else key)
            each.pool.release(each.pages)
        return not self._loading
