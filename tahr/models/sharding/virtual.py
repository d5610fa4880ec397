"""Virtual ranks: all shards of a model in one process. What ranks in processes of their own compute is held to this."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, cast

from tahr.backends.api import (
    Backend,
    ExpertMLPs,
    KVStore,
    Linear,
    LinearShape,
    LoraFactors,
    Reduce,
    StepInputs,
    Tensor,
)
from tahr.models.decoder import Decoder
from tahr.models.sharding.lockstep import Combine, Lockstep
from tahr.models.sharding.parts import cut_factors
from tahr.models.sharding.plan import ShardingPlan
from tahr.models.sharding.rules import HEAD, Axis

REDUCES: Mapping[Axis, Reduce] = {"columns": "sum"}


def rank_name(rank: int, name: str) -> str:
    """The name of a linear on a rank: adapters change each by itself."""
    return f"rank{rank}.{name}"


def named_on(plan: ShardingPlan, rank: int, linear: Linear) -> Linear:
    """A linear under its name on a rank, which says what becomes of its product."""
    weight = f"{linear.name}.weight"
    stacked = weight not in plan.tensors  # experts that files hold one by one
    sharded = plan.tensors[weight if not stacked else weight.replace(".experts.", ".experts.0.")]
    reduces = "join" if linear.name == HEAD else REDUCES.get(sharded.how, "")
    return replace(linear, name=rank_name(rank, linear.name), reduce=reduces)


def whole_linears(plan: ShardingPlan, rank: int, linears: Mapping[str, LinearShape]) -> Mapping[str, LinearShape]:
    """The linears of a rank as adapters know them: whole, and under the model's names."""
    prefix = rank_name(rank, "")
    found = {name.removeprefix(prefix): shape for name, shape in linears.items()}
    sizes = {name: plan.tensors[f"{name}.weight"].shape[-2:] for name in found}
    return {name: replace(shape, n_rows=sizes[name][0], n_cols=sizes[name][1]) for name, shape in found.items()}


def factors_on(plan: ShardingPlan, rank: int, factors: Mapping[str, LoraFactors]) -> Mapping[str, LoraFactors]:
    """The part of an adapter's factors that a rank has."""
    return {
        rank_name(rank, name): cut_factors(each, plan.tensors[f"{name}.weight"], rank) for name, each in factors.items()
    }


class RankBackend:
    """A rank's view of a backend: products of shared matrices are summed over ranks, or put side by side."""

    def __init__(self, backend: Backend, rank: int, lockstep: Lockstep):
        self._backend = backend
        self._rank = rank
        self._lockstep = lockstep
        self._combines: dict[Reduce, Combine] = {
            "sum": partial(reduce, backend.add),
            "join": partial(reduce, partial(backend.join_heads, n_heads=1)),
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        return self._combined(self._backend.linear(x, linear), linear.reduce)

    def experts(self, x: Tensor, scores: Tensor, mlps: ExpertMLPs) -> Tensor:
        return self._combined(self._backend.experts(x, scores, mlps), mlps.down.reduce)

    def _combined(self, part: Tensor, how: Reduce) -> Tensor:
        return self._lockstep.meet(self._rank, part, self._combines[how]) if how else part


class VirtualRanks(Decoder):
    """A decoder made of one for each rank. Its memory is that of the ranks' layers, one rank after the other."""

    def __init__(self, plan: ShardingPlan, ranks: Sequence[Decoder]):
        first = ranks[0]
        self.plan = plan
        self.ranks = ranks
        self.config = plan.config
        self.layers = first.layers
        self.memory = tuple(shape for rank in ranks for shape in rank.memory)
        self.row_width = first.row_width
        self.ropes = first.ropes
        self.norm = first.norm
        self.embedding = first.embedding
        self.table = first.table
        self.files = first.files
        self.linears = {name: shape for rank in ranks for name, shape in rank.linears.items()}
        self.encoding = None
        self.text_head = None
        self.tower = None
        self.line_end = None
        self.head = first.head

    @property
    def windows(self) -> Sequence[int]:
        return self.config.windows * self.plan.n_ranks

    @property
    def targets(self) -> Mapping[str, LinearShape]:
        return whole_linears(self.plan, 0, self.ranks[0].linears)

    def factors_of(self, factors: Mapping[str, LoraFactors]) -> Mapping[str, LoraFactors]:
        of_ranks = [factors_on(self.plan, rank, factors) for rank in range(self.plan.n_ranks)]
        return {name: each for found in of_ranks for name, each in found.items()}

    def forward(self, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        """The logits, which all ranks have; those of the first one."""
        return self._first(Decoder.forward, backend, step, kv)

    def hidden(self, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        return self._first(Decoder.hidden, backend, step, kv)

    def _first(self, pass_of: Any, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        lockstep = Lockstep(self.plan.n_ranks)

        def one(rank: int) -> Tensor:
            view = cast(Backend, RankBackend(backend, rank, lockstep))
            result: Tensor = pass_of(self.ranks[rank], view, step, self._memory_of(kv, rank))
            return result

        return lockstep.run(one)[0]

    def _memory_of(self, kv: KVStore, rank: int) -> KVStore:
        """A rank's layers of a KV store, in the same pages and groups."""
        n_layers = len(self.ranks[rank].memory)
        mine = range(rank * n_layers, (rank + 1) * n_layers)
        chosen = slice(mine.start, mine.stop)
        return KVStore(kv.layout.part(mine), kv.group_of[chosen], kv.n_bytes, kv.layers[chosen])
