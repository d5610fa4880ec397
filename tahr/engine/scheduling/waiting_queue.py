"""The waiting queue: sequences that are not running yet, or that were preempted."""

from heapq import heappop, heappush, heapreplace

from tahr.engine.scheduling.policies import Policy
from tahr.engine.sequences.parts import Rank
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.sequences.shares import Shares

PATIENCE = 32  # times the oldest sequence is passed over before it goes first, whatever the policy says
BEHIND = 2  # added to the number that ranks of background sequences begin with


class WaitingQueue:
    """Ordered by the policy; where that sees no difference, by what owners have had; for each owner by turns.

    Turns are of each request one sequence, then the next: a sequence waits for the turn of the last one admitted and
    for as many more as its request has sequences before it. So a request of many choices or prompts lets all those of
    its owner that come after it go before its second one.

    No sequence starves: one that has been passed over too often goes first. Only the oldest counts, so a sequence is
    passed over at most `PATIENCE` times for each older one and for itself, and as often for each owner that waits.
    Background sequences come after all others, however long they have waited; among themselves they are treated
    likewise.
    """

    def __init__(self, policy: Policy, shares: Shares):
        self._policy = policy
        self._shares = shares
        self._turn = 0  # the latest that has come
        self._members: dict[int, Sequence] = {}
        # Entries of sequences that have left, or have another rank by now, are skipped when they come to the top.
        self._by_rank: dict[str, list[tuple[Rank, Sequence]]] = {}  # a heap for each owner
        self._by_age: list[tuple[bool, int, Sequence]] = []
        # The first of each owner. No entry stands behind its place; one before it is put right when it is at the top.
        self._by_share: list[tuple[Rank, str]] = []
        self._places: dict[str, Rank] = {}  # the entry of each owner that counts

    def all(self) -> list[Sequence]:
        """All that wait here, in no order."""
        return list(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, seq: Sequence) -> bool:
        return seq.id in self._members

    @property
    def members(self) -> list[Sequence]:
        return list(self._members.values())

    @property
    def first(self) -> Sequence | None:
        """The sequence to admit next."""
        heap = self._by_share
        while heap:
            place, owner = heap[0]
            if self._places.get(owner) != place:
                heappop(heap)
                continue
            seq = self._first_of(owner)
            if seq is None:
                del self._places[owner]
                continue
            now = place_of(seq)
            if now == place:
                return seq
            self._places[owner] = now
            heapreplace(heap, (now, owner))
        return None

    def _first_of(self, owner: str) -> Sequence | None:
        heap = self._by_rank.get(owner)
        if heap is None:
            return None
        while heap and (heap[0][1].id not in self._members or heap[0][0] != heap[0][1].queueing.rank):
            heappop(heap)
        if not heap:
            del self._by_rank[owner]
            return None
        return heap[0][1]

    def comes_before(self, seq: Sequence) -> bool:
        """Whether one that waits here is admitted before a sequence that has its rank."""
        first = self.first
        return first is not None and place_of(first) < place_of(seq)

    def add(self, seq: Sequence) -> None:
        """Queue a sequence; one that was preempted keeps its rank and age."""
        self.join(seq)
        self._members[seq.id] = seq
        self._place(seq)
        heappush(self._by_age, (seq.queueing.is_background, seq.id, seq))

    def join(self, seq: Sequence) -> None:
        """Give a new sequence its rank, whether it is queued now or has to wait for something else first."""
        if not seq.queueing.rank:
            self.rank(seq, self._turn)

    def rank(self, seq: Sequence, turn: int) -> None:
        """Give a sequence its rank; `turn` is that of the first one of its request."""
        seq.queueing.share = self._shares.enter(seq.queueing.owner)
        seq.queueing.turn = turn + seq.queueing.n_before
        seq.queueing.rank = (1 + BEHIND * seq.queueing.is_background, self._policy(seq), seq.queueing.turn, seq.id)

    def _place(self, seq: Sequence) -> None:
        """Put a sequence among those of its owner, and its owner among the others, if it is the first of them."""
        owner = seq.queueing.owner
        heap = self._by_rank.setdefault(owner, [])
        heappush(heap, (seq.queueing.rank, seq))
        place = place_of(seq)
        if owner not in self._places or place < self._places[owner]:
            self._places[owner] = place
            heappush(self._by_share, (place, owner))

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out; does nothing if it is not here."""
        self._members.pop(seq.id, None)

    def pop(self) -> Sequence:
        """Take out the first one."""
        first = self.first
        oldest = self._oldest()
        assert first and oldest, "the queue is empty"
        if oldest is not first:
            self._pass_over(oldest)
        self._turn = max(self._turn, first.queueing.turn)
        self._shares.admit(first.queueing.share)
        self.remove(first)
        return first

    def _oldest(self) -> Sequence | None:
        heap = self._by_age
        while heap and heap[0][1] not in self._members:
            heappop(heap)
        return heap[0][2] if heap else None

    def _pass_over(self, seq: Sequence) -> None:
        seq.queueing.n_passed += 1
        if seq.queueing.n_passed >= PATIENCE * len(self._by_rank) and not has_waited_long(seq.queueing.rank):
            # This rank is final: those it waited for must not preempt it.
            seq.queueing.rank = (BEHIND * seq.queueing.is_background, 0, seq.id)
            self._place(seq)


def has_waited_long(rank: Rank) -> bool:
    """Whether a rank is that of a sequence which was passed over too often."""
    return rank[0] % BEHIND == 0


def place_of(seq: Sequence) -> Rank:
    """The place of a sequence among those of all owners; it falls back while its owner is served."""
    first, policy, *turn = seq.queueing.rank
    n_tokens = 0 if has_waited_long(seq.queueing.rank) else seq.queueing.share.n_tokens
    return (first, policy, n_tokens, *turn)
