"""Brings pages back into the pools, for sequences that are going to be admitted.

A fetch holds the pages that it has brought until it is over. Then they are cached like those of any other text, and its
sequence finds them there.
"""

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

from tahr.engine.sequences.sequence import Sequence
from tahr.engine.tiers.places import Places
from tahr.executor.protocol import STATES
from tahr.kv.tiers.disk import FileRead, NameLookup
from tahr.kv.tiers.page_files import Contents, KvFile

MAX_FETCHES = 32  # sequences whose pages are on their way at once
READ_AHEAD = 4  # files that are being read while others are loaded
LOADED_BYTES = 64 << 20  # limit on what all fetches load between two steps: copies may be made at once
LATE_S = 0.5  # grace of a disk, beyond twice the time that it should take
MOST_LATE_S = 10.0  # limit on all patience
END = object()


class PoolLoad(NamedTuple):
    """Pages on their way from the host into a pool, or a state into a slot of checkpoints."""

    group: int
    pages: list[int]
    hashes: list[bytes]
    ticket: Any
    n_bytes: int
    began: float


class RunRead(NamedTuple):
    """A file that is being read, and the pages on the host that it is read into."""

    request: FileRead
    pages: dict[int, ListOf[Any]]  # lists by group


@dataclass(eq=False, slots=True)
class Fetch:
    """A sequence whose pages are on their way."""

    seq: Sequence
    number: int  # numbers in the order in which fetches begin
    hashes: ListOf[bytes]  # hashes of the pages that it could begin with
    at: int  # pages that are there, or on their way
    held: list[list[int]]  # pages that it has brought, by group
    steps: Iterator[None] = field(default_factory=lambda: iter(()))
    reads: deque[RunRead] = field(default_factory=deque)
    n_read: int = 0  # pages up to which files are being read
    loads: list[PoolLoad] = field(default_factory=list)
    is_over: bool = False  # nothing more is loaded
    is_abandoned: bool = False  # the sequence is gone

    def end(self) -> None:
        """Load nothing more."""
        self.is_over = True
        for read in self.reads:
            read.request.is_cancelled = True
        self.reads.clear()


class PageFetcher:
    """All fetches of an engine."""

    def __init__(self, places: Places):
        self._places = places
        self._pools = places.prefix.pools
        self._fetches: dict[int, Fetch] = {}  # keys are ids of sequences
        self._n_begun = 0
        self._tried: set[int] = set()  # sequences that were looked for since they were queued
        self._coming: dict[bytes, Fetch] = {}  # hashes of pages on their way, and who brings them
        self._loadable_bytes = LOADED_BYTES  # rest of that limit

    @property
    def n_waiting(self) -> int:
        return len(self._fetches)

    @property
    def reads_files(self) -> bool:
        """Whether the disk is being waited for."""
        return any(not fetch.loads for fetch in self._fetches.values())

    @property
    def loading(self) -> list[list[int]]:
        """Pages that fetches hold, by pool."""
        held = [[page for fetch in self._fetches.values() for page in fetch.held[group]] for group in self._groups]
        for load in [load for fetch in self._fetches.values() for load in fetch.loads if load.group != STATES]:
            held[load.group] += load.pages
        return held

    @property
    def _groups(self) -> range:
        return range(len(self._pools))

    def begin(self, seq: Sequence, n_found: int) -> bool:
        """Fetch what the pools lack of a text after its first pages; whether its sequence has to wait for that."""
        prefix = self._places.prefix
        n_most = min(len(seq.tokens) - 1, prefix.max_text_tokens) // prefix.page_size
        if seq.id in self._tried or n_most <= n_found or len(self._fetches) == MAX_FETCHES:
            return False
        self._tried.add(seq.id)
        assert seq.memory.hashes
        seq.memory.hashes.of(seq.tokens, n_most - 1)
        self._n_begun += 1
        fetch = Fetch(seq, self._n_begun, seq.memory.hashes.known[:n_most], n_found, [[] for _ in self._pools])
        fetch.steps = self._bring(fetch)
        self._fetches[seq.id] = fetch
        self._advance(fetch)
        return not self._leave(fetch)

    def take_ready(self) -> list[Sequence]:
        """The sequences that need not wait any more."""
        self._loadable_bytes = LOADED_BYTES
        for fetch in self._fetches.values():
            self._advance(fetch)
        gone = [fetch for fetch in list(self._fetches.values()) if self._leave(fetch)]
        return [fetch.seq for fetch in gone if not fetch.is_abandoned]

    def release(self, seq: Sequence) -> None:
        """A sequence is gone, or is to be looked for again when it is queued next."""
        self._tried.discard(seq.id)
        if fetch := self._fetches.get(seq.id):
            fetch.end()
            fetch.is_abandoned = True

    def _advance(self, fetch: Fetch) -> None:
        """Let pages that have come be found, and go on loading as far as that needs no waiting."""
        self._land(fetch)
        if not fetch.is_over and next(fetch.steps, END) is END:
            fetch.end()
        self._land(fetch)

    def _leave(self, fetch: Fetch) -> bool:
        """Release the pages of a fetch if it is over."""
        if not fetch.is_over or fetch.loads:
            return False
        del self._fetches[fetch.seq.id]
        self._coming = {block_hash: each for block_hash, each in self._coming.items() if each is not fetch}
        for pool, pages in zip(self._pools, fetch.held, strict=True):
            pool.release(pages)
        return True

    def _land(self, fetch: Fetch) -> None:
        """Let pages and states be found whose copies have ended."""
        places = self._places
        for load in [load for load in fetch.loads if load.ticket.done()]:
            fetch.loads.remove(load)
            if load.group == STATES:
                assert places.prefix.checkpoints is not None
                places.prefix.checkpoints.loaded(load.pages[0], load.hashes[0])
            else:
                pool = self._pools[load.group]
                for page, block_hash in zip(load.pages, load.hashes, strict=True):
                    pool.loaded(page, block_hash if places.prefix.make_place(pool) else None)
                fetch.held[load.group] += load.pages
            places.stats.count_load(len(load.pages), load.n_bytes, perf_counter() - load.began)

    # ---- one fetch: each `yield` waits, for a step or for a copy ------------------------------------------------

    def _bring(self, fetch: Fetch) -> Iterator[None]:
        """Load page after page, from wherever it is."""
        if self._places.prefix.checkpoints is not None:
            yield from self._find_state(fetch)
        while fetch.at < len(fetch.hashes):
            if self._places.in_pools(fetch.hashes[fetch.at]):
                fetch.at += 1
            elif self._loadable_bytes <= 0:
                yield  # loading goes on after a step
            elif self._is_brought_by_another(fetch, fetch.hashes[fetch.at]):
                yield  # another text begins alike
            elif self._places.in_host(fetch.hashes[fetch.at]):
                if not (self._places.host_pays and self._load_from_host(fetch)):
                    return
                if fetch.loads and fetch.at < len(fetch.hashes):
                    yield  # a bounded part at a time
            elif not self._places.disk_pays or not (yield from self._load_from_disk(fetch)):
                return
        if self._places.prefix.checkpoints is not None and fetch.hashes:
            yield from self._load_state(fetch, fetch.hashes[-1])

    def _is_brought_by_another(self, fetch: Fetch, block_hash: bytes) -> bool:
        """Whether an earlier fetch has a page on its way. No fetch waits for a later one: two never wait for each
        other, whatever is evicted meanwhile."""
        return self._coming.get(block_hash, fetch).number < fetch.number

    def _load_from_host(self, fetch: Fetch) -> bool:
        """Load pages that follow each other on the host; False if a pool cannot take them."""
        host = self._places.host
        assert host is not None
        hashes: list[bytes] = []
        n_most = max(1, self._loadable_bytes // sum(pool.page_bytes for pool in self._pools))
        for block_hash in fetch.hashes[fetch.at : fetch.at + n_most]:
            if not self._places.in_host(block_hash):
                break
            hashes.append(block_hash)
        fetch.at += len(hashes)
        self._coming |= dict.fromkeys(hashes, fetch)
        found = {
            group: {each: page for each in hashes if (page := host.get((group, each))) is not None}
            for group in self._groups
        }
        return self._load(fetch, found)

    def _load_from_disk(self, fetch: Fetch) -> Generator[None, None, bool]:
        """Load the next run of a text; False, at the end, if it is not there or late, or if a pool cannot take it."""
        began = perf_counter()
        self._read_ahead(fetch)
        if not fetch.reads:
            return False  # the rest fills no run
        request, pages = fetch.reads[0]
        n_bytes = request.memory.n_bytes
        while not request.is_over:
            if perf_counter() - began > self._patience(n_bytes):
                self._places.shun_disk()
                return False
            yield
        fetch.reads.popleft()
        if request.found is None:
            if request.is_damaged:
                self._write_again(fetch, request.which.block_hash)
            return False
        last = fetch.hashes.index(request.which.block_hash) + 1
        hashes = fetch.hashes[last - request.which.n_pages : last]
        fetch.at = last
        found = {group: dict(zip(hashes, pages[group], strict=True)) for group in request.found.groups}
        return self._load(fetch, found)

    def _write_again(self, fetch: Fetch, block_hash: bytes) -> None:
        """Remove the files behind a damaged one: all is computed again, and what is there would not be written."""
        disk = self._places.disk
        n_run = self._places.n_run
        assert disk
        n_pages = len(fetch.hashes)
        begins = range(fetch.hashes.index(block_hash) + 1, n_pages, n_run)
        ends = [min(begin + n_run, n_pages) for begin in begins]
        disk.remove(KvFile(fetch.hashes[end - 1], end - begin).name for begin, end in zip(begins, ends, strict=True))

    def _patience(self, n_bytes: int) -> float:
        """Seconds after which a read is late."""
        disk = self._places.disk
        assert disk
        n_before = READ_AHEAD * len(self._fetches)  # files that may be read before
        expected_s = n_before * n_bytes / disk.bytes_per_s if disk.bytes_per_s else 0.0
        return min(LATE_S + 2 * expected_s, MOST_LATE_S)

    def _read_ahead(self, fetch: Fetch) -> None:
        """Have the next files of a text read."""
        disk = self._places.disk
        n_run = self._places.n_run
        assert disk
        begin = max(fetch.n_read, fetch.at // n_run * n_run)
        while len(fetch.reads) < READ_AHEAD:
            end = begin + n_run
            if end > len(fetch.hashes):
                end = len(fetch.hashes) if self._places.prefix.checkpoints is not None else begin
            if end == begin:
                return
            self._coming |= dict.fromkeys(fetch.hashes[begin:end], fetch)
            read = self._run_read(KvFile(fetch.hashes[end - 1], end - begin))
            fetch.reads.append(read)
            disk.read(read.request)
            begin = end
            fetch.n_read = end

    def _run_read(self, which: KvFile) -> RunRead:
        pages = {group: self._places.port.blank(which.n_pages, group) for group in self._groups}
        return RunRead(FileRead(which, Contents(pages)), pages)

    def _load(self, fetch: Fetch, found: Mapping[int, Mapping[bytes, Any]]) -> bool:
        """Load pages that the pools do not have by now; False if a pool has no pages left for them."""
        for group, contents in found.items():
            pool = self._pools[group]
            wanted = {key: page for key, page in contents.items() if pool.lookup(key) is None}
            if pool.window:
                wanted = dict(list(wanted.items())[-pool.most_held :])
                self._release_old(fetch, group, len(wanted))
            if len(wanted) > pool.n_free:
                return False
            if wanted:
                pages = pool.take_loading(len(wanted))
                ticket = self._places.port.load(pages, group, list(wanted.values()))
                n_bytes = pool.page_bytes * len(wanted)
                self._loadable_bytes -= n_bytes
                fetch.loads.append(PoolLoad(group, pages, list(wanted), ticket, n_bytes, perf_counter()))
        return True

    def _release_old(self, fetch: Fetch, group: int, n_new: int) -> None:
        """No token will look at pages that a window has left: others may take them."""
        held = fetch.held[group]
        n_old = max(0, len(held) + n_new - self._pools[group].most_held)
        self._pools[group].release(held[:n_old])
        del held[:n_old]

    # ---- states -------------------------------------------------------------------------------------------------

    def _find_state(self, fetch: Fetch) -> Iterator[None]:
        """Cut the text at the last page after which a state is known; those of the device were looked for before."""
        places = self._places
        host = places.host
        newer = fetch.hashes[fetch.at :]
        n_in_host = max((n for n, key in enumerate(newer, 1) if host is not None and (STATES, key) in host), default=0)
        n = n_in_host
        if places.disk and places.disk_pays:
            lookup = NameLookup([KvFile(key, 0, True).name for key in reversed(newer[n_in_host:])])
            places.disk.find(lookup)
            began = perf_counter()
            while not lookup.is_over:
                if perf_counter() - began > LATE_S:
                    places.shun_disk()
                    break
                yield
            n = len(newer) - lookup.place if lookup.place is not None else n_in_host
        fetch.hashes = fetch.hashes[: fetch.at + n] if n else []
        # Pages before that may be cached without a state, and others not: each is looked at.
        fetch.at = 0

    def _load_state(self, fetch: Fetch, block_hash: bytes) -> Iterator[None]:
        """Load the state after all pages that were loaded."""
        places = self._places
        checkpoints = places.prefix.checkpoints
        assert checkpoints is not None
        page = places.host.get((STATES, block_hash)) if places.host is not None else None
        if page is None:
            page = yield from self._read_state(block_hash)
        if page is None:
            return
        if slot := checkpoints.take_loading():
            ticket = places.port.load([slot], STATES, [page])
            fetch.loads.append(PoolLoad(STATES, [slot], [block_hash], ticket, page.n_bytes, perf_counter()))

    def _read_state(self, block_hash: bytes) -> Generator[None, None, Any]:
        """Read a state from the disk; None, at the end, if it is not there or late."""
        disk = self._places.disk
        assert disk
        (page,) = self._places.port.blank(1, STATES)
        request = FileRead(KvFile(block_hash, 0, True), Contents({}, page))
        disk.read(request)
        began = perf_counter()
        while not request.is_over:
            if perf_counter() - began > self._patience(page.n_bytes):
                self._places.shun_disk()
                request.is_cancelled = True
                return None
            yield
        return page if request.found is not None else None
