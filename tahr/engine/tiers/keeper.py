"""Copies pages to the host and to disks, behind the steps that filled them.

A disk gets runs of pages, so that a file is large enough to be read at the disk's speed; each run is named by the block
hash of its last page, which stands for all of the text before it. A text that ends within a run has a shorter one only
where a state can be continued from there.
"""

from collections.abc import Sequence as ListOf
from typing import NamedTuple

from tahr.engine.sequences.sequence import Sequence
from tahr.engine.tiers.places import CopiedPages, Places, PlannedFile
from tahr.executor.protocol import STATES
from tahr.kv.tiers.disk import FileWrite
from tahr.kv.tiers.page_files import Contents, KvFile


class FullPages(NamedTuple):
    """Pages of a text that are to be copied, and the runs of them that files are to be made of."""

    hashes: ListOf[bytes]
    runs: ListOf[ListOf[bytes]]


class PageKeeper:
    """Keeps what steps have computed."""

    def __init__(self, places: Places):
        self._places = places
        self._wanted: list[FullPages] = []  # pages that the step which has just landed has filled
        self._on_their_way: list[CopiedPages] = []
        self._states: dict[int, tuple[int, CopiedPages]] = {}  # numbers of tokens and copies, by sequence

    def keep(self, seq: Sequence, begin: int, end: int) -> None:
        """Have the pages of a text copied that have become full."""
        assert seq.memory.hashes
        places = self._places
        n_run = places.n_run
        hashes = seq.memory.hashes.known
        runs: list[ListOf[bytes]] = []
        if places.disk_pays:
            runs = [hashes[run * n_run : (run + 1) * n_run] for run in range(begin // n_run, end // n_run)]
        wanted = hashes[begin:end] if places.host is not None else []
        if wanted or runs:
            self._wanted.append(FullPages([*wanted, *(each for run in runs for each in run)], runs))
        if seq.id in self._states:
            self._keep_state(seq)

    def copy(self) -> None:
        """Copy what the texts of a step have filled: together, or one by one where there is memory for some."""
        wanted = self._wanted
        self._wanted = []
        if wanted and not self._copy_all(wanted) and len(wanted) > 1:
            for each in wanted:
                self._copy_all([each])
        self.arrive()

    def _copy_all(self, wanted: ListOf[FullPages]) -> bool:
        copied = self._copy(list(dict.fromkeys(block_hash for each in wanted for block_hash in each.hashes)))
        if copied:
            for run in [run for each in wanted for run in each.runs]:
                self._plan_run(copied, run)
        return copied is not None

    def keep_state(self, seq: Sequence) -> None:
        """Copy the state after all that is scheduled of a sequence, before the next step changes it."""
        places = self._places
        if places.port.n_storable(1, STATES):
            assert seq.memory.hashes
            last = seq.memory.hashes.of(seq.tokens, seq.scheduled // places.prefix.page_size - 1)
            copied = CopiedPages()
            copied.add(STATES, [last], places.port.store([seq.memory.slot], STATES))
            self._states[seq.id] = seq.scheduled, copied
            self._keep_state(seq)

    def release(self, seq: Sequence) -> None:
        """A sequence is gone, or computes its text again."""
        self._states.pop(seq.id, None)

    def forget(self, hashes: ListOf[bytes]) -> None:
        """Let nobody find what was kept of a text."""
        places = self._places
        known = {*hashes}
        for copied in self._on_their_way:
            copied.is_void |= any(block_hash in known for _, block_hash in copied.keys)
        if places.host is not None:
            for group in (STATES, *range(len(places.prefix.pools))):
                for block_hash in hashes:
                    places.host.remove((group, block_hash))
        if places.disk:
            places.disk.remove(KvFile(each, 0, is_state).name for each in hashes for is_state in (False, True))

    @property
    def n_copying(self) -> int:
        return len(self._on_their_way)

    def arrive(self) -> None:
        """Put copies that have ended into the host's store, and have their files written."""
        for copied in [copied for copied in self._on_their_way if copied.done()]:
            self._on_their_way.remove(copied)
            if not copied.is_void:
                self._put(copied)

    def _put(self, copied: CopiedPages) -> None:
        host = self._places.host
        disk = self._places.disk
        pages = copied.collect()
        if host is not None:
            for key, page in pages.items():
                if key not in host:
                    host.put(key, page)
        for which, hashes, groups in copied.files:
            assert disk
            parts = {group: [pages[group, each] for each in hashes] for group in groups}
            state = pages[STATES, which.block_hash] if which.has_state else None
            disk.write(FileWrite(which, Contents(parts, state)))

    # ---- one copy -----------------------------------------------------------------------------------------------

    def _keep_state(self, seq: Sequence) -> None:
        """Keep a state whose step has landed, and the pages before it that fill no run."""
        position, copied = self._states[seq.id]
        if seq.computed < position:
            return
        del self._states[seq.id]
        assert seq.memory.hashes
        places = self._places
        end = position // places.prefix.page_size
        hashes = seq.memory.hashes.known[:end]
        self._on_their_way.append(copied)
        if not places.disk_pays:
            return
        tail = hashes[end // places.n_run * places.n_run :]
        pages = self._copy(tail) if tail else None
        if pages:
            self._plan_run(pages, tail)
        if pages or not tail:
            copied.files.append(PlannedFile(KvFile(hashes[-1], 0, True), (), ()))

    def _copy(self, hashes: ListOf[bytes]) -> CopiedPages | None:
        """Begin to copy pages, those that are in the pools; None: there is no memory for that."""
        places = self._places
        copied = CopiedPages()
        for group, pool in enumerate(places.prefix.pools):
            found = {each: page for each in hashes if (page := pool.lookup(each)) is not None}
            for each in list(found):
                if places.host is not None and (page := places.host.get((group, each))) is not None:
                    copied.put((group, each), page)
                    del found[each]
            if not found:
                continue
            if places.port.n_storable(len(found), group) < len(found):
                places.stats.n_dropped += len(found)
                return None
            copied.add(group, list(found), places.port.store(list(found.values()), group))
            places.stats.n_stored += len(found)
        self._on_their_way.append(copied)
        return copied

    def _plan_run(self, copied: CopiedPages, hashes: ListOf[bytes]) -> None:
        """Have pages written once they are copied, unless layers that see everything lack some of them."""
        pools = self._places.prefix.pools
        groups = [group for group in range(len(pools)) if all((group, each) in copied for each in hashes)]
        if all(group in groups for group, _ in self._places.needed):
            copied.files.append(PlannedFile(KvFile(hashes[-1], len(hashes)), hashes, groups))
