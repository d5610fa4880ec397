"""The host's memory and a disk behind the pools, as the scheduler sees them."""

from time import sleep
from typing import TYPE_CHECKING

from tahr.engine.sequences.stats import TierUse
from tahr.engine.tiers.fetcher import PageFetcher
from tahr.engine.tiers.keeper import PageKeeper
from tahr.engine.tiers.places import Places
from tahr.kv.tiers.disk import DiskStats

if TYPE_CHECKING:
    from tahr.engine.sequences.sequence import Sequence
    from tahr.kv.prefix import BlockHashes

IDLE_S = 0.002  # between two looks at copies, where there is nothing to compute


class PageTiers:
    """Keeps pages elsewhere, and lets sequences wait for theirs."""

    def __init__(self, places: Places):
        self.places = places
        self._keeper = PageKeeper(places)
        self._fetcher = PageFetcher(places)
        self.keep = self._keeper.keep
        self.keep_state = self._keeper.keep_state
        self.copy = self._keeper.copy

    @property
    def n_waiting(self) -> int:
        return self._fetcher.n_waiting

    @property
    def n_copying(self) -> int:
        """Copies to the host on their way."""
        return self._keeper.n_copying

    @property
    def loading(self) -> list[list[int]]:
        """Pages that copies hold, by pool."""
        return self._fetcher.loading

    def begin(self, seq: "Sequence", n_found: int) -> bool:
        """Fetch what the pools lack of a text after its first pages; whether its sequence has to wait for that."""
        self._keeper.arrive()
        return self._fetcher.begin(seq, n_found)

    def take_ready(self) -> "list[Sequence]":
        """The sequences that need not wait any more."""
        self._keeper.arrive()
        return self._fetcher.take_ready()

    def release(self, seq: "Sequence") -> None:
        """A sequence is gone, or is preempted."""
        self._keeper.release(seq)
        self._fetcher.release(seq)

    def forget(self, hashes: "BlockHashes") -> None:
        """Let nobody find what was kept of a text: its computing cannot be trusted."""
        self._keeper.forget(hashes.known)

    def use(self) -> TierUse:
        """Bytes of the places at this moment, and counts. Any thread may ask."""
        pages = self.places.stats
        disk = self.places.disk
        files = disk.stats if disk else DiskStats()
        return TierUse(
            host_bytes=self.places.host.n_bytes if self.places.host is not None else 0,
            disk_bytes=disk.n_bytes if disk else 0,
            disk_fault=disk.off if disk else "",
            pages_stored=pages.n_stored,
            pages_dropped=pages.n_dropped,
            pages_loaded=pages.n_loaded,
            files_written=files.n_written,
            files_dropped=files.n_dropped,
            files_read=files.n_read,
            files_missed=files.n_missed,
            files_damaged=files.n_damaged,
            reads_late=files.n_late,
        )

    def close(self) -> None:
        """Let a disk write what it was given; nothing is read or written after that."""
        if self.places.disk:
            self.places.disk.close()

    def wait(self) -> None:
        """Wait a moment for pages on their way, where there is nothing to compute."""
        disk = self.places.disk
        if disk and self._fetcher.reads_files:
            disk.ended.wait(IDLE_S)
            disk.ended.clear()
        elif self.n_waiting or self.n_copying:
            sleep(IDLE_S)
