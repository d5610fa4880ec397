"""A decoder for each rank, of its part of the tensors."""

from collections.abc import Callable
from functools import partial

from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder
from tahr.models.parts.weights import LoadCounts, Weights
from tahr.models.sharding.parts import RankTensors
from tahr.models.sharding.plan import ShardingPlan
from tahr.models.sharding.virtual import VirtualRanks, named_on, rank_name

Build = Callable[[ModelConfig, Weights], Decoder]


def build_ranks(build: Build, whole: Weights, plan: ShardingPlan) -> VirtualRanks:
    """All ranks of a model on one backend."""
    return VirtualRanks(plan, [build_rank(build, whole, plan, rank) for rank in range(plan.n_ranks)])


def build_rank(build: Build, whole: Weights, plan: ShardingPlan, rank: int) -> Decoder:
    """One rank of a model; what it takes is counted where `whole` counts."""
    assert whole.change is None and not whole.lora_rows and not whole.homes, "nothing of the kind is cut"
    counts = LoadCounts()
    weights = Weights(
        plan.rank_config(rank),
        RankTensors(whole.tensors, plan, rank),
        whole.backend,
        counts=counts,
        named=partial(named_on, plan, rank),
    )
    decoder = build(weights.config, weights)
    add_counts(whole.counts, counts, rank)
    if whole.progress:
        whole.progress(rank + 1, plan.n_ranks)
    return decoder


def add_counts(total: LoadCounts, counts: LoadCounts, rank: int) -> None:
    """Count what one rank took."""
    total.names |= counts.names
    total.n_tensors += counts.n_tensors
    total.n_bytes += counts.n_bytes
    total.n_vector_bytes += counts.n_vector_bytes
    total.sizes |= {rank_name(rank, name): size for name, size in counts.sizes.items()}
