"""The host's memory and a disk behind the pools, as the scheduler sees them."""

from time import sleep
from typing import TYPE_CHECKING

from tahr.engine.tiers.fetcher import PageFetcher
from tahr.engine.tiers.keeper import PageKeeper
from tahr.engine.tiers.places import Places

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
