"""Which row slots a drafter reads: rows of a step's prompts by their place in it, and the last rows of each sequence.

A model's steps store a row for each token; the drafter computes entries from them later. Prompts are many rows, which
are read before the next step. Of each sequence the last ones lie in a ring of its own, by their position, so that a
drafter need not run after every step. Behind them it stores the rows that it makes itself while it drafts; the model's
next step writes over these.
"""

from dataclasses import dataclass

import numpy as np

from tahr.backends.api import Extras, Ints, StepInputs
from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.speculation.speculator import may_speculate
from tahr.executor.output import Output

MOST_BEHIND = 16  # entries of a sequence that decodes, after which they are computed though nothing is drafted


def ring_size(n_decode_tokens: int) -> int:
    """Rows of a ring: those not read yet, those of the next step, and those that the drafter makes."""
    return MOST_BEHIND + 3 * n_decode_tokens


def n_row_slots(n_tokens: int, n_seqs: int, n_decode_tokens: int) -> int:
    """Row slots for steps of so many tokens, and the rings of so many sequences."""
    return n_tokens + n_seqs * ring_size(n_decode_tokens)


@dataclass(slots=True)
class RowRing:
    """The last rows of a sequence: row p lies in slot `first + p % size`, for begin <= p < end."""

    owner: Sequence
    first: int
    begin: int = 0
    end: int = 0


class RowRings:
    """Rings by sequence, and where the other rows of the last step are."""

    def __init__(self, n_tokens: int, n_seqs: int, n_decode_tokens: int):
        self.size = ring_size(n_decode_tokens)
        self._n_kept = n_decode_tokens  # rows at the end of a sequence's part of a step that go to its ring
        self._free = [n_tokens + i * self.size for i in range(n_seqs)]
        self._rings: dict[int, RowRing] = {}
        self._passing: dict[int, tuple[int, int, int]] = {}  # first position, end, and first slot

    def ring(self, seq: Sequence) -> RowRing | None:
        """The ring of a sequence; None before a step has stored rows for it."""
        return self._rings.get(seq.id)

    def begin_step(self) -> None:
        """Rows of the last step's prompts are about to be written over."""
        self._passing.clear()

    def take(self, seq: Sequence) -> RowRing | None:
        """The ring of a sequence, which gets one; None where all are taken."""
        found = self._rings.get(seq.id)
        if found:
            return found
        if not self._free:
            self._collect()
        if not self._free:
            return None
        ring = self._rings[seq.id] = RowRing(seq, self._free.pop())
        return ring

    def targets(self, ring: RowRing, begin: int, n: int, place: int) -> Ints:
        """Where the rows of the tokens begin .. begin + n of a sequence go, which stand in the step from `place` on."""
        end = begin + n
        kept = max(begin, end - self._n_kept)
        follows = ring.begin <= kept <= ring.end
        ring.begin = max(ring.begin if follows else kept, end - self.size)
        ring.end = end
        if kept > begin:
            self._passing[ring.owner.id] = begin, kept, place
        slots = np.arange(place, place + n, dtype=np.int32)
        slots[kept - begin :] = self._ring_slots(ring, kept, end)
        return slots

    def slots(self, seq: Sequence, begin: int, end: int) -> Ints:
        """Where rows begin .. end of a sequence are; -1: they are gone, and zeros are read in their place."""
        found = np.full(end - begin, -1, np.int32)
        ring = self._rings.get(seq.id)
        first, last, place = self._passing.get(seq.id, (0, 0, 0))
        low, high = max(begin, first), min(end, last)
        if low < high:
            found[low - begin : high - begin] = np.arange(place + low - first, place + high - first)
        if ring:
            low, high = max(begin, ring.begin), min(end, ring.end)
            if low < high:
                found[low - begin : high - begin] = self._ring_slots(ring, low, high)
        return found

    def own_slot(self, seq: Sequence, position: int) -> int:
        """Where the drafter stores and finds a row that it has made itself."""
        return self._rings[seq.id].first + position % self.size

    def has_passing(self, seq: Sequence) -> bool:
        return seq.id in self._passing

    def first_known(self, seq: Sequence) -> int:
        """The first position of a sequence whose row is here, all after it being here too."""
        ring = self._rings[seq.id]
        first, last, _ = self._passing.get(seq.id, (0, 0, 0))
        return first if last and last >= ring.begin else ring.begin

    def used(self, seq: Sequence, n: int) -> None:
        """The drafter has read the first n rows of a sequence, and may store its own in place of all but the last."""
        ring = self._rings.get(seq.id)
        if ring:
            ring.begin = max(ring.begin, min(n - 1, ring.end))

    def _ring_slots(self, ring: RowRing, begin: int, end: int) -> Ints:
        return (ring.first + np.arange(begin, end) % self.size).astype(np.int32)

    def _collect(self) -> None:
        """Take back the rings of sequences that do not run any more."""
        for key, ring in list(self._rings.items()):
            if not ring.owner.memory.tables or not ring.owner.memory.tables[0].pages:
                self._free.append(ring.first)
                del self._rings[key]


class TargetColumns:
    """Names the slots that a step of the model stores rows in."""

    def __init__(self, step: StepInputs, rings: RowRings):
        self._step = step
        self._rings = rings

    def fill(self, work: StepWork) -> int:
        """Write the targets of a step's tokens; some of `Extras`."""
        self._rings.begin_step()
        if work.sequences[0].wanted.output is not Output.LOGITS:
            return 0
        extras = 0
        at = 0
        for seq, begin, n, _, _ in work:
            here = self._step.row_target[at : at + n]
            ring = self._rings.take(seq) if may_speculate(seq) else None
            here[:] = self._rings.targets(ring, begin, n, at) if ring else -1
            extras |= int(Extras.TARGETS) if ring else 0
            at += n
        return extras


class DrafterColumns:
    """Names the rows that a step of the drafter reads, and the slots of those it makes."""

    def __init__(self, step: StepInputs, rings: RowRings):
        self._step = step
        self._rings = rings
        self.chains = False  # the rows to read are the drafter's own

    def fill(self, work: StepWork) -> int:
        """Write the rows of a step's entries, and the targets of those that it samples from; some of `Extras`."""
        at = 0
        n_made = 0
        for seq, begin, n, _, n_rows in work:
            end = begin + n
            own = self.chains
            self._step.row_of[at : at + n] = (
                self._rings.own_slot(seq, begin) if own else self._rings.slots(seq, begin, end)
            )
            if n_rows:
                self._step.row_target[n_made] = self._rings.own_slot(seq, end)
            n_made += n_rows
            at += n
        return int(Extras.ROWS | Extras.TARGETS)
