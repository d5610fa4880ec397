"""The waiting queue: sequences that are not running yet, or that were preempted."""

from heapq import heappop, heappush

from tahr.engine.scheduling.policies import Policy
from tahr.engine.sequences.parts import Rank
from tahr.engine.sequences.sequence import Sequence

PATIENCE = 32  # times the oldest sequence is passed over before it goes first, whatever the policy says
BEHIND = 2  # added to the number that ranks of background sequences begin with


class WaitingQueue:
    """Ordered by the policy, and where that sees no difference, by turns: of each request one sequence, then the next.

    A sequence waits for the turn of the last one admitted and for as many more as its request has sequences before it.
    So a request of many choices or prompts lets all those that come after it go before its second one.

    No sequence starves: one that has been passed over too often goes first. Only the oldest counts, so a sequence is
    passed over at most `PATIENCE` times for each older one and for itself. Background sequences come after all others,
    however long they have waited; among themselves they are treated likewise.
    """

    def __init__(self, policy: Policy):
        self._policy = policy
        self._turn = 0  # the latest that has come
        self._members: dict[int, Sequence] = {}
        # Entries of sequences that have left, or have another rank by now, are skipped when they come to the top.
        self._by_rank: list[tuple[Rank, Sequence]] = []
        self._by_age: list[tuple[bool, int, Sequence]] = []

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
        heap = self._by_rank
        while heap and (heap[0][1].id not in self._members or heap[0][0] != heap[0][1].queueing.rank):
            heappop(heap)
        return heap[0][1] if heap else None

    def add(self, seq: Sequence) -> None:
        """Queue a sequence; one that was preempted keeps its rank and age."""
        self.join(seq)
        self._members[seq.id] = seq
        heappush(self._by_rank, (seq.queueing.rank, seq))
        heappush(self._by_age, (seq.queueing.is_background, seq.id, seq))

    def join(self, seq: Sequence) -> None:
        """Give a new sequence its rank, whether it is queued now or has to wait for something else first."""
        if not seq.queueing.rank:
            self.rank(seq, self._turn)

    def rank(self, seq: Sequence, turn: int) -> None:
        """Give a sequence its rank; `turn` is that of the first one of its request."""
        seq.queueing.turn = turn + seq.queueing.n_before
        seq.queueing.rank = (1 + BEHIND * seq.queueing.is_background, self._policy(seq), seq.queueing.turn, seq.id)

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
        self.remove(first)
        return first

    def _oldest(self) -> Sequence | None:
        heap = self._by_age
        while heap and heap[0][1] not in self._members:
            heappop(heap)
        return heap[0][2] if heap else None

    def _pass_over(self, seq: Sequence) -> None:
        seq.queueing.n_passed += 1
        if seq.queueing.n_passed == PATIENCE:
            seq.queueing.rank = (
                BEHIND * seq.queueing.is_background,
                0,
                seq.id,
            )  # this rank is final: those it waited for must not preempt it
            heappush(self._by_rank, (seq.queueing.rank, seq))
