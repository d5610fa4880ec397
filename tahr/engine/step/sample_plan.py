"""Which sequences of a step get a token, and from which rows of logits."""

from collections.abc import Sequence as ListOf
from itertools import accumulate
from operator import sub

from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.step.drafts import drafted_request


class SamplePlan:
    """Which sequences of a step get a token, and from which rows; the choices of a request share one after its prompt.

    A sequence with drafts is sampled from as many rows as it computes tokens, each as if the drafts before it were its
    own. The plan is kept while the same sequences are sampled from the same rows.
    """

    def __init__(self, work: StepWork):
        self._sequences = work.sequences
        self._samples = work.samples
        self._n_rows = work.n_rows
        sequences = work.sequences
        samples = work.samples
        ids = [seq.id for seq in sequences]
        ends = list(accumulate(work.n_rows))
        # Sorted by age, so that requests keep their places when one of them is scheduled in another order.
        items = sorted(range(len(ids)), key=ids.__getitem__)
        self._owners = [i for i in items if samples[i] and sequences[i].reply.request]  # item of each token
        self.sampled = [sequences[i] for i in self._owners]
        self.requests = [request for seq in self.sampled if (request := seq.reply.request)]
        self.rows = [ends[i] - 1 for i in self._owners]  # the row of logits each token is sampled from
        self.parents: list[Sequence] = []  # the sequences that the others of `sampled` are forked from
        self.drafts: dict[int, ListOf[int]] = {}  # drafts by the id of the sequence
        self._n_after: list[int] = []  # drafts after each token's row; empty: there are none
        if [seq for seq in self.sampled if seq.ahead.drafts or seq.queueing.forks]:
            self._add_choices()
        self.constrained = [seq for seq in self.sampled if seq.reply.grammar]
        self.wants_rows = ends[-1] > len(set(self.rows))  # others than those to sample from

    def _add_choices(self) -> None:
        """Sample sequences with drafts from more rows, and forked choices from the rows of their parents."""
        found = list(zip(self.sampled, self.rows, self._owners, strict=True))
        for column in (self.sampled, self.requests, self.rows, self._owners):
            column.clear()
        for seq, row, item in found:
            choices = self._choices(seq)
            n_drafts = len(seq.ahead.drafts)
            self.sampled += choices
            self.requests += [drafted_request(each, n) for n, each in enumerate(choices)]
            self.rows += range(row - n_drafts, row + 1) if n_drafts else [row] * len(choices)
            self._n_after += range(n_drafts, -1, -1) if n_drafts else [0] * len(choices)
            self._owners += [item] * len(choices)

    def _choices(self, seq: Sequence) -> list[Sequence]:
        """A sequence once for each token that is sampled for it, or with the choices that are forked from it."""
        if seq.ahead.drafts:
            self.drafts[seq.id] = seq.ahead.drafts
            return [seq] * (1 + len(seq.ahead.drafts))
        if not seq.queueing.forks or seq.n_generated:
            return [seq]
        self.parents.append(seq)
        return [seq, *(fork for fork in seq.queueing.forks if not fork.done)]

    def lengths(self, seq_lens: ListOf[int]) -> list[int]:
        """How many tokens come before each that is sampled, by the lengths of the step's sequences."""
        found = [seq_lens[item] for item in self._owners]
        return list(map(sub, found, self._n_after)) if self.drafts else found

    def slots(self) -> list[int]:
        """The token slots that samples go to; none for drafts, and for choices that are not forked yet."""
        return [0 if seq.ahead.drafts else seq.ahead.token_slot for seq in self.sampled]

    def holds(self, work: StepWork) -> bool:
        """Whether it says the same of another step."""
        return (
            not (self.parents or self.drafts or self.wants_rows)
            and self._sequences == work.sequences
            and self._samples == work.samples
            and self._n_rows == work.n_rows
        )
