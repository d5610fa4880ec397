"""Launches steps and collects what comes of them: fills the inputs, replays the plan that fits, samples."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from operator import sub
from threading import Lock
from time import perf_counter
from typing import NamedTuple

from tahr.backends.api import Backend, Fetched, Floats, KVStore, LoraBank, Plan, StepInputs, StepLimits, Tensor
from tahr.engine.running.sampler import PendingTokens, Sampler
from tahr.engine.running.warming import first_prepared, warming_order
from tahr.engine.sampling.sample_batch import SampleBatch
from tahr.engine.sampling.sampling_state import Sample, SampleRequest
from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.sequence import Output, Sequence
from tahr.engine.step.adapter_rows import AdapterRows
from tahr.engine.step.batch import Batch
from tahr.engine.step.drafts import Drafts, drafted_request
from tahr.grammar.masks import Forced, GrammarToken
from tahr.kv.tables import PageCopy
from tahr.models.decoder import Decoder

Forward = Callable[[Backend, StepInputs, KVStore], Tensor]
MOST_HALVED = 7  # how often the largest step is halved, for steps that give hidden rows
LEAST_HIDDEN = 64  # tokens of the smallest of these

N_FIRST_RUNS = 2  # of a plan: a backend may compile in the first and capture in the second
MOST_LARGER = 1.25  # times the tokens of the smallest bucket, of one that is taken because its plan is warm
PATIENCE = 16  # steps that take such a bucket, until the smallest one makes its first runs after all
N_AHEAD = 32  # plans that are prepared while the first of them wait for that


class StepOutput(NamedTuple):
    """What a step brought."""

    tokens: ListOf[Sample]  # by the step's `sampled` sequences: a token each, or why there is none
    rows: Floats | None  # the wanted rows in the order of the work; None if the host needs none


class LaterSample(NamedTuple):
    """What a step samples once the host knows the tokens of the step before."""

    sampler: Sampler
    requests: list[SampleRequest]
    rows: list[int]
    logits: Tensor
    lengths: list[int]  # of the texts before the token to sample

    def batch(self) -> SampleBatch:
        return self.sampler.batch(self.requests, self.rows)

    def launch(self, batch: SampleBatch) -> PendingTokens:
        return self.sampler.launch(batch, self.logits, self.lengths)


@dataclass(slots=True)
class InFlight:
    """A launched step; its results are on their way."""

    work: StepWork
    sampled: list[Sequence]  # the sequences that get a token; one with drafts is there once for each of its rows
    rows: list[int]  # the row of logits each token is sampled from
    parents: list[Sequence]  # the sequences that the others of `sampled` are forked from
    drafts: Drafts  # the guesses that are verified
    tokens: PendingTokens | None  # None: sampling waits, see `later`
    host_rows: Fetched | None  # all rows in the order of the work, if some are wanted besides those to sample from
    began: float
    n_first_runs: int  # of plans before this step: if there are more, how long it took says nothing about others
    later: "LaterSample | None" = None  # sampling waits until the host knows the tokens before, for the grammars' sake
    batch: "SampleBatch | None" = None  # of `later`: masks are being filled
    void: frozenset[int] = frozenset()  # sequences, by id, whose samples do not count: tokens were forced meanwhile

    def begin_masks(self, tokens: ListOf[GrammarToken] = ()) -> list[Forced]:
        """Let grammars take the tokens before, and begin the masks; what each token forces."""
        assert self.later
        self.batch = self.later.batch()
        return self.batch.begin_masks(self.later.sampler.filler, tokens)

    def begin_sample(self) -> ListOf[int]:
        """Begin the masks unless that has been done; the samples whose tokens the device will not know by itself."""
        assert self.later
        if self.batch is None:
            self.begin_masks()
        assert self.batch
        known = zip(self.sampled, self.later.lengths, strict=True)
        self.void = frozenset(seq.id for seq, n in known if len(seq.tokens) > n)
        return self.batch.on_host

    def sample(self) -> None:
        """Begin to sample what had to wait, when its masks are filled. The next step must not have run yet."""
        assert self.later and self.batch
        self.tokens = self.later.launch(self.batch)
        self.later = self.batch = None

    def collect(self) -> StepOutput:
        """Wait for the step, and take its results."""
        if self.later:
            self.sample()
        assert self.tokens
        return StepOutput(self.tokens.collect(), self.host_rows.collect() if self.host_rows else None)


@dataclass(slots=True)
class PlanSet:
    """The plans for one kind of output, by bucket."""

    forward: Forward
    buckets: ListOf[StepLimits]
    plans: dict[StepLimits, Plan] = field(default_factory=dict)
    last: tuple[StepLimits, Plan] | None = None  # found without hashing
    n_lent: dict[StepLimits, int] = field(default_factory=dict)  # steps that took another bucket in place of these

    def is_warm(self, bucket: StepLimits, fresh: Mapping[int, int]) -> bool:
        """Whether the plan of a bucket has made its first runs; `fresh` has those that have not, by their identity."""
        plan = self.last[1] if self.last and self.last[0] is bucket else self.plans.get(bucket)
        return plan is not None and id(plan) not in fresh

    def near(self, wanted: StepLimits) -> Iterator[StepLimits]:
        """Buckets of the same kind that hold whatever one holds and do not cost much more, the smallest first."""
        kind, sizes = wanted.n_tokens_per_seq, (wanted.n_tokens, wanted.n_rows, wanted.n_seqs)
        for each in self.buckets:
            is_near = each.n_tokens_per_seq == kind and each.n_tokens <= MOST_LARGER * wanted.n_tokens
            if is_near and each.hold(*sizes, kind):
                yield each


class Runner:
    """Owns an engine's plans: each recorded on first use, replayed for every step that fits its bucket."""

    def __init__(
        self,
        backend: Backend,
        decoder: Decoder,
        kv: KVStore,
        limits: StepLimits,
        n_vocab: int | None = None,
        forward: Forward | None = None,
        n_decode_tokens: int = 1,  # of one sequence in a step: its own and its drafts
        aside: bool = False,  # it drafts for another: see `Backend.step_inputs`
    ):
        self.backend = backend
        self.decoder = decoder
        self.kv = kv
        self.n_vocab = n_vocab or decoder.config.n_vocab  # tokens that exist: a model may have more logits
        self.n_first_runs = 0  # of plans, in which they compile or capture what later ones replay
        self._fresh: dict[int, int] = {}  # by the identity of a plan: how many such runs it has left
        self.n_adapted = 0  # adapters that sequences use, each as often as it is used
        # Hidden rows are small: every token of a step may have one.
        most = replace(limits, n_rows=max(limits.n_rows, limits.n_tokens))
        self.step = backend.step_inputs(most, aside)
        self.buckets = backend.buckets(limits, n_decode_tokens)
        self.sampler = Sampler(backend, self.n_vocab, aside)
        self._batch = Batch(self.step, kv.page_size, kv.layout.n_slots > 1)
        self._logits = PlanSet(forward or decoder.forward, self.buckets)
        self._hidden = PlanSet(decoder.hidden, hidden_buckets(most) if len(self.buckets) > 1 else [most])
        self._adapted: dict[tuple[object, ...], PlanSet] = {}  # of steps in which sequences have adapters
        self._adapter_rows: AdapterRows | None = None
        self._making_rows = Lock()
        self._sample_plan: SamplePlan | None = None
        self._n_decode_tokens = n_decode_tokens
        self._cold: deque[StepLimits] | None = None  # buckets whose plans may have first runs to make

    def launch(self, work: StepWork, before: Callable[[], object] | None = None) -> InFlight:
        """Begin a step. `before` is called when it is ready to run, because it writes over the rows of the last one."""
        began = perf_counter()
        samples = self._sample_plan
        if samples is None or not samples.holds(work):
            samples = self._sample_plan = SamplePlan(work)
        plan = self.fill(work)
        if before:
            before()
        waits = bool(samples.bound) and any(seq.n_ahead > len(seq.drafts) for seq in samples.bound)
        batch = None if waits else self.sampler.prepare(samples.requests, samples.rows)
        n_first_runs, lengths = self.n_first_runs, samples.lengths(self._batch.seq_lens)
        result = self.replay(plan)  # on a CPU it empties the caches, and the least possible is done right afterwards
        tokens = self.sampler.launch(batch, result, lengths) if batch else None
        host_rows = self.backend.fetch(result) if samples.wants_rows else None
        step = InFlight(
            work, samples.sampled, samples.rows, samples.parents, samples.drafts, tokens, host_rows, began, n_first_runs
        )
        if waits:
            step.later = LaterSample(self.sampler, samples.requests, samples.rows, result, lengths)
        return step

    def fill(self, work: StepWork) -> Plan:
        """Write the inputs of a step; the plan that computes its wanted rows from them."""
        self.decoder.files.check(self.backend.file_stamp)
        if work.copies:
            self._copy_pages(work.copies)
        self._batch.fill(work)
        plans = self._logits if work.sequences[0].output is Output.LOGITS else self._hidden
        if self.n_adapted and (n_rounds := self.adapter_rows().fill(work)):
            plans = self._with_adapters(plans, n_rounds)
        return self.plan_for(self._bucket(plans), plans)

    def replay(self, plan: Plan) -> Tensor:
        """Begin to compute the rows of a step whose inputs are filled in; the next one may write over them."""
        if self._fresh:
            self._count_first_run(plan)
        plan.run()  # from here on the inputs may be filled again
        return plan.result

    def _count_first_run(self, plan: Plan) -> None:
        self.n_first_runs += self._take_first_run(plan)

    def _take_first_run(self, plan: Plan) -> bool:
        """Whether this is one of the first runs of a plan."""
        n_left = self._fresh.pop(id(plan), 0)
        if n_left > 1:
            self._fresh[id(plan)] = n_left - 1
        return n_left > 0

    def warm_next(self) -> bool:
        """Make one of the first runs of a plan that no step has needed yet, if one is prepared; False if none is left.

        Nothing may be in flight. It runs on a step without tokens, which changes no page and no state, and is waited
        for.
        """
        plans = self._cold_plans() if self.backend.wants_warming() else []
        if plan := first_prepared(self.backend, plans) if plans else None:
            self.run_empty(plan)
            self._take_first_run(plan)
        return bool(plans)

    def rehearsed(self, bucket: StepLimits, bank: LoraBank) -> Plan:
        """A plan of a step whose linears add the adapters of this bank; it is not kept."""
        forward, step = adapted(self._logits.forward, bank, 1), self.step.within(bucket)
        return self.backend.record(lambda: forward(self.backend, step, self.kv), step)

    def run_empty(self, plan: Plan) -> None:
        """Run a plan on a step without tokens, and wait for it."""
        counts = self.step.counts.copy()
        self.step.counts[:] = 0
        try:
            plan.run()
            self.backend.fetch(plan.result).collect()
        finally:
            self.step.counts[:] = counts  # the next step may have the same, and then leaves them as they are

    def _cold_plans(self) -> list[Plan]:
        """The first plans that have first runs left, whether they have made any or not."""
        plans = self._hidden if self.decoder.encoding else self._logits
        if self._cold is None:
            self._cold = warming_order(plans.buckets, self._n_decode_tokens)
        while self._cold and plans.is_warm(self._cold[0], self._fresh):
            self._cold.popleft()
        found = (self.plan_for(bucket, plans) for bucket in islice(self._cold, N_AHEAD))
        return [plan for plan in found if id(plan) in self._fresh]

    def adapter_rows(self) -> AdapterRows:
        """Where adapters are kept, and which rows of a step meet them; made when the first one is loaded."""
        if self._adapter_rows is None:
            with self._making_rows:  # adapters are read on any thread, several at once
                rows = self._adapter_rows or AdapterRows(self.backend.lora_bank(self.decoder.linears, self.step.limits))
                self._adapter_rows = rows
        return self._adapter_rows

    def _with_adapters(self, plans: PlanSet, n_rounds: int) -> PlanSet:
        """The same plans for steps with adapters; recorded again when an adapter changes what steps are made of."""
        bank = self.adapter_rows().bank
        key = plans is self._hidden, n_rounds, bank.plan_key
        if key not in self._adapted:
            # Older ones hold graphs and buffers that no step needs any more.
            self._adapted = {each: kept for each, kept in self._adapted.items() if each[2] == bank.plan_key}
            self._adapted[key] = PlanSet(adapted(plans.forward, bank, n_rounds), plans.buckets)
        return self._adapted[key]

    def copy_states(self, copies: list[tuple[int, int]]) -> None:
        """Copy states of sequences, as (slot, slot), before the next step."""
        if copies:
            self.backend.copy_states(self.kv, copies)

    def _copy_pages(self, copies: list[PageCopy]) -> None:
        for group in {copy.group for copy in copies}:
            pairs = [(copy.source, copy.target) for copy in copies if copy.group == group]
            self.backend.copy_pages(self.kv, pairs, group)

    def _bucket(self, plans: PlanSet) -> StepLimits:
        """The smallest bucket that holds the step as it is filled in; a little larger one, while only that is warm."""
        if len(plans.buckets) == 1:
            return plans.buckets[0]
        step = self.step
        counts = step.n_tokens, step.n_rows, step.n_seqs, self._batch.n_most
        wanted = next(bucket for bucket in plans.buckets if bucket.hold(*counts))
        if not self._fresh or plans.is_warm(wanted, self._fresh) or plans.n_lent.get(wanted, 0) == PATIENCE:
            return wanted
        larger = next((each for each in plans.near(wanted) if plans.is_warm(each, self._fresh)), None)
        if larger is None:
            return wanted
        plans.n_lent[wanted] = plans.n_lent.get(wanted, 0) + 1
        return larger

    def plan_for(self, bucket: StepLimits, plans: PlanSet | None = None) -> Plan:
        """The plan of a bucket; for logits, unless told otherwise."""
        plans = plans or self._logits
        if plans.last and plans.last[0] is bucket:
            return plans.last[1]
        plan = plans.plans.get(bucket)
        if plan is None:
            step, forward = self.step.within(bucket), plans.forward
            plan = self.backend.record(lambda: forward(self.backend, step, self.kv), step)
            plans.plans[bucket] = plan
            self._fresh[id(plan)] = N_FIRST_RUNS
        plans.last = bucket, plan
        return plan


def hidden_buckets(most: StepLimits) -> list[StepLimits]:
    """Sizes of plans that give hidden rows, where steps are padded: a short text must not cost a full step."""
    sizes = [most.n_tokens >> halved for halved in reversed(range(MOST_HALVED + 1))]
    return [replace(most, n_tokens=n, n_rows=n) for n in sizes if n >= LEAST_HIDDEN or n == most.n_tokens]


def adapted(forward: Forward, bank: LoraBank, n_rounds: int) -> Forward:
    """A forward pass whose linears add the adapters of their rows."""

    def run(backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        with backend.adapting(bank, n_rounds):
            return forward(backend, step, kv)

    return run


class SamplePlan:
    """Which sequences of a step get a token, and from which rows; the choices of a request share one after its prompt.

    A sequence with drafts is sampled from as many rows as it computes tokens, each as if the drafts before it were its
    own. The plan is kept while the same sequences are sampled from the same rows.
    """

    def __init__(self, work: StepWork):
        self._sequences, self._samples, self._n_rows = work.sequences, work.samples, work.n_rows
        sequences, samples = work.sequences, work.samples
        ids, ends = [seq.id for seq in sequences], list(accumulate(work.n_rows))
        # By age, so that requests keep their places when one of them is scheduled in another order.
        items = sorted(range(len(ids)), key=ids.__getitem__)
        self._owners = [i for i in items if samples[i] and sequences[i].request]  # by token: the item it belongs to
        self.sampled = [sequences[i] for i in self._owners]
        self.requests = [request for seq in self.sampled if (request := seq.request)]
        self.rows = [ends[i] - 1 for i in self._owners]  # the row of logits each token is sampled from
        self.parents: list[Sequence] = []  # the sequences that the others of `sampled` are forked from
        self.drafts: dict[int, ListOf[int]] = {}  # by the id of the sequence
        self._n_after: list[int] = []  # by token: drafts of its sequence after its row; empty: there are none
        if [seq for seq in self.sampled if seq.drafts or seq.forks]:
            self._add_choices()
        self.bound = [seq for seq in self.sampled if seq.grammar]
        self.wants_rows = ends[-1] > len(set(self.rows))  # others than those to sample from

    def _add_choices(self) -> None:
        """Sample sequences with drafts from more rows, and forked choices from the rows of their parents."""
        found = list(zip(self.sampled, self.rows, self._owners, strict=True))
        for column in (self.sampled, self.requests, self.rows, self._owners):
            column.clear()
        for seq, row, item in found:
            choices, n_drafts = self._choices(seq), len(seq.drafts)
            self.sampled += choices
            self.requests += [drafted_request(each, n) for n, each in enumerate(choices)]
            self.rows += range(row - n_drafts, row + 1) if n_drafts else [row] * len(choices)
            self._n_after += range(n_drafts, -1, -1) if n_drafts else [0] * len(choices)
            self._owners += [item] * len(choices)

    def _choices(self, seq: Sequence) -> list[Sequence]:
        """A sequence once for each token that is sampled for it, or with the choices that are forked from it."""
        if seq.drafts:
            self.drafts[seq.id] = seq.drafts
            return [seq] * (1 + len(seq.drafts))
        if not seq.forks or seq.n_generated:
            return [seq]
        self.parents.append(seq)
        return [seq, *(fork for fork in seq.forks if not fork.done)]

    def lengths(self, seq_lens: ListOf[int]) -> list[int]:
        """How many tokens come before each that is sampled, by the lengths of the step's sequences."""
        found = [seq_lens[item] for item in self._owners]
        return list(map(sub, found, self._n_after)) if self.drafts else found

    def holds(self, work: StepWork) -> bool:
        """Whether it says the same of another step."""
        return (
            not (self.parents or self.drafts or self.wants_rows)
            and self._sequences == work.sequences
            and self._samples == work.samples
            and self._n_rows == work.n_rows
        )
