"""The plans of one model: each recorded on first use, by what its steps give, their size, and their adapters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tahr.backends.api import (
    Backend,
    Extras,
    KVStore,
    LoraBank,
    MemoryLayout,
    Plan,
    RowStore,
    StepInputs,
    StepLimits,
    Tensor,
)
from tahr.executor.frames import frame_inputs
from tahr.executor.protocol import PlanKey
from tahr.kv.pages import pages_for
from tahr.models.decoder import Decoder
from tahr.models.drafters.eagle3 import Drafter
from tahr.models.parts.tower import Tower
from tahr.weights.watch import FileWatch

Forward = Callable[[Backend, StepInputs, KVStore], Tensor]

TOWER_PAGE = 16  # tokens of a page in the memory of a tower's steps
MOST_HALVED = 7  # halvings of the largest step, for steps that give hidden rows
N_PARTS = 16  # sizes of a tower's steps differ by such a part of the larger
LEAST_HIDDEN = 64  # tokens of the smallest of these


def hidden_buckets(most: StepLimits) -> list[StepLimits]:
    """Sizes of plans that give hidden rows, where steps are padded: a short text must not cost a full step."""
    sizes = [most.n_tokens >> halved for halved in reversed(range(MOST_HALVED + 1))]
    return [replace(most, n_tokens=n, n_rows=n) for n in sizes if n >= LEAST_HIDDEN or n == most.n_tokens]


def tower_buckets(most: StepLimits) -> list[StepLimits]:
    """Sizes of a tower's plans. All its tokens take part in large products, so they lie closer together."""
    sizes = {
        bucket.n_tokens * part // N_PARTS for bucket in hidden_buckets(most) for part in range(N_PARTS // 2, N_PARTS)
    }
    return [replace(most, n_tokens=n, n_rows=n) for n in sorted({*sizes, most.n_tokens})]


def adapted(forward: Forward, bank: LoraBank, n_rounds: int) -> Forward:
    """A forward pass whose linears add the adapters of their rows."""

    def run(backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        with backend.adapting(bank, n_rounds):
            return forward(backend, step, kv)

    return run


@dataclass(slots=True, kw_only=True)
class ExecutedModel:
    """A model of an executor, with its memory, its inputs, and the plans that were recorded on them."""

    files: FileWatch  # files that its steps read
    kv: KVStore
    inputs: StepInputs
    buckets: tuple[Sequence[StepLimits], ...]  # buckets by `Output`, or by part of a tower
    forwards: tuple[Forward, ...]  # forward passes, likewise
    plans: dict[PlanKey, Plan] = field(default_factory=dict)
    last: tuple[PlanKey, Plan] | None = None  # found without hashing
    adapted_for: tuple[int, ...] = ()  # the bank's `plan_key` that plans with adapters were recorded for

    def plan(self, backend: Backend, key: PlanKey, bank: LoraBank | None = None) -> Plan:
        """The plan of a key; those with adapters are recorded again when these change what steps are made of."""
        if key[2]:
            self._follow(bank)
        if self.last and self.last[0] == key:
            return self.last[1]
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = self.record(backend, key, bank)
        self.last = key, plan
        return plan

    def record(self, backend: Backend, key: PlanKey, bank: LoraBank | None) -> Plan:
        """A new plan."""
        output, bucket, n_rounds, extras = key
        forward = self.forwards[output]
        if n_rounds:
            assert bank, "adapters have rows before a step has adapters"
            forward = adapted(forward, bank, n_rounds)
        step = self.inputs.within(replace(self.buckets[output][bucket], extras=extras))
        return backend.record(lambda: forward(backend, step, self.kv), step)

    def forget_plans(self) -> None:
        """Drop all plans: what they were recorded on goes."""
        self.plans.clear()
        self.last = None

    def _follow(self, bank: LoraBank | None) -> None:
        """Drop the plans of other adapters: they hold graphs and buffers that no step needs any more."""
        assert bank, "adapters have rows before a step has adapters"
        if self.adapted_for != bank.plan_key:
            self.adapted_for = bank.plan_key
            self.plans = {key: plan for key, plan in self.plans.items() if not key[2]}
            self.last = None


@dataclass(slots=True, kw_only=True)
class ExecutedDecoder(ExecutedModel):
    """One that makes logits and hidden rows of tokens."""

    decoder: Decoder
    n_vocab: int  # tokens that exist: a model may have more logits
    n_decode_tokens: int


class StoredLayers(NamedTuple):
    """Layers whose input steps store, side by side, and the row slots for it."""

    layers: Sequence[int]
    rows: RowStore


def make_model(
    backend: Backend,
    decoder: Decoder,
    kv: KVStore,
    limits: StepLimits,
    n_vocab: int | None = None,
    n_decode_tokens: int = 1,
    forward: Forward | None = None,
    rows: RowStore | None = None,
    stored: StoredLayers | None = None,
) -> ExecutedDecoder:
    """A model without plans. Hidden rows are small: every token of a step may have one."""
    if stored:
        limits = replace(limits, extras=int(limits.extras | Extras.TARGETS))
        forward = forward or decoder.tapped(stored.layers)
    most = replace(limits, n_rows=max(limits.n_rows, limits.n_tokens))
    buckets = backend.buckets(limits, n_decode_tokens)
    rows_of_texts = hidden_buckets(most) if len(buckets) > 1 else [most]
    frames = frame_inputs(backend, decoder, limits)
    return ExecutedDecoder(
        files=decoder.files,
        decoder=decoder,
        kv=kv,
        inputs=replace(
            backend.step_inputs(most), rows=rows, target_rows=stored.rows if stored else None, frames=frames
        ),
        buckets=(buckets, rows_of_texts, buckets),
        forwards=(forward or decoder.forward, decoder.hidden, decoder.draw),
        n_vocab=n_vocab or decoder.config.n_vocab,
        n_decode_tokens=n_decode_tokens,
    )


def make_drafter(backend: Backend, drafter: Drafter, kv: KVStore, limits: StepLimits, rows: RowStore) -> ExecutedModel:
    """A drafter without plans. It reads the slots that its model's steps store rows in, and stores its own there."""
    limits = replace(limits, extras=int(Extras.ROWS | Extras.TARGETS))
    buckets = backend.buckets(limits)
    return ExecutedModel(
        files=drafter.files,
        kv=kv,
        inputs=replace(backend.step_inputs(limits), rows=rows, target_rows=rows),
        buckets=(buckets, buckets),
        forwards=(drafter.follow, drafter.chain),
    )


def make_tower(
    backend: Backend, tower: Tower, limits: StepLimits, targets: RowStore | None, memory: KVStore
) -> ExecutedModel:
    """A tower without plans. Its parts hand on rows in the slots that they read; the last one writes `targets`, if a
    model reads what it makes, or layers of the model's memory."""
    limits = replace(limits, n_rows=limits.n_tokens, extras=int(Extras.ROWS | Extras.ROPE | Extras.TARGETS))
    n_pages = pages_for(limits.n_tokens, TOWER_PAGE) + limits.n_seqs
    layout = MemoryLayout((tower.memory,), (n_pages,), TOWER_PAGE, backend.tower_kv_dtype(tower.matrix.weight))
    rows = backend.row_store(limits.n_tokens, max(tower.width_in, tower.width))
    sizes = tower_buckets(limits) if len(backend.buckets(limits)) > 1 else [limits]
    *inner, last = tower.parts
    return ExecutedModel(
        files=tower.files,
        kv=backend.kv_store(layout),
        inputs=replace(backend.step_inputs(limits), rows=rows, target_rows=targets, target_memory=memory),
        buckets=(sizes,) * len(tower.parts),
        forwards=(*(writing(part, rows) for part in inner), last),
    )


def writing(forward: Forward, targets: RowStore) -> Forward:
    """A forward pass that stores rows elsewhere."""

    def run(backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        return forward(backend, replace(step, target_rows=targets), kv)

    return run
