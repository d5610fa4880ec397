"""The rows that sequences wait for and hold: a sequence is queued when those it is going to read are there."""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as ListOf

from tahr.engine.sequences.prompt_rows import RowSource
from tahr.engine.sequences.sequence import Sequence
from tahr.kv.row_slots import RowSlots

NumberReused = Callable[[Sequence], int]  # tokens of a sequence that need not be computed


class RowMemory:
    """Row slots, the sequences that hold them, and those that wait: first for slots, then until rows are computed.

    A sequence holds the rows that it may still compute, all at once, so that none waits half-way for another's. It
    gives them back when its prompt is computed; one that is preempted takes them again.
    """

    def __init__(self, slots: RowSlots, n_reused: NumberReused):
        self.slots = slots
        self.wanted: deque[tuple[bytes, RowSource]] = deque()  # contents to compute
        self._n_reused = n_reused
        self.for_host: dict[int, Sequence] = {}  # sequences whose rows are for the host, by id, the first come first
        self._waiting: dict[int, Sequence] = {}  # likewise, those that wait for rows
        self._held: dict[int, list[bytes]] = {}  # digests by the id of the sequence

    @property
    def n_waiting(self) -> int:
        return len(self._waiting) + len(self.for_host)

    def add(self, seq: Sequence) -> None:
        """Let a sequence wait that is not to be queued before its rows are there, or not at all."""
        (self.for_host if seq.wanted.source else self._waiting)[seq.id] = seq

    def take_ready(self) -> list[Sequence]:
        """The sequences that need not wait any more."""
        ready: list[Sequence] = []
        for seq in list(self._waiting.values()):
            if seq.id not in self._held and not self._hold(seq, self._n_reused(seq)):
                break  # slots that it waits for must not go to others
            if self.has_rows(seq):
                ready.append(self._waiting.pop(seq.id))
        return ready

    def has_rows(self, seq: Sequence, n_computed: int | None = None) -> bool:
        """Whether all rows are there that a sequence holds; those after its first tokens, if their number is given."""
        held = self._held.get(seq.id, [])
        if n_computed is not None and not seq.rows.contents(n_computed).keys() <= {*held}:
            return False
        return all(self.slots.is_ready(digest) for digest in held)

    def release(self, seq: Sequence) -> None:
        """Give back what a sequence holds or waits for."""
        self._waiting.pop(seq.id, None)
        self.for_host.pop(seq.id, None)
        for digest in self._held.pop(seq.id, ()):
            self.slots.release(digest)

    def share(self, seq: Sequence) -> None:
        """Hold for a fork what its parent holds."""
        is_held = self._hold(seq, 0)
        assert is_held, "rows that are held need no more slots"

    def still_wanted(self, digest: bytes) -> bool:
        """Whether a sequence waits for rows that are not there."""
        return not self.slots.is_ready(digest) and any(digest in held for held in self._held.values())

    def waiting_for(self, digests: ListOf[bytes]) -> list[Sequence]:
        """The sequences that hold some of these contents."""
        return [seq for seq in self._waiting.values() if {*digests} & {*self._held.get(seq.id, ())}]

    def check(self) -> None:
        """Slots are held by just the sequences that are known to hold them."""
        self.slots.check(self._held.values())

    def _hold(self, seq: Sequence, n_computed: int) -> bool:
        contents = seq.rows.contents(n_computed)
        known = {digest for digests in self._held.values() for digest in digests}
        if not self.slots.hold(contents):
            return False
        self._held[seq.id] = list(contents)
        new = [digest for digest in contents if digest not in known and not self.slots.is_ready(digest)]
        self.wanted += [(digest, seq.rows.sources[digest]) for digest in new]
        return True
