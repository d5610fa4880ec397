"""The sharding plan as a table: tensors of the same name in all layers are one row."""

import re
from dataclasses import dataclass

from tahr.models.sharding.plan import ShardedTensor, ShardingPlan

HOW = {"whole": "all of it", "first": "on rank 0"}


@dataclass(frozen=True, slots=True)
class ShardRow:
    """Tensors that are shared alike."""

    name: str
    n_tensors: int
    how: str
    parts: str  # numbers of what the axis counts, by rank
    n_bytes: tuple[int, ...]  # sizes by rank


def sharding_rows(plan: ShardingPlan) -> list[ShardRow]:
    """A row for each kind of tensor, in the order of the file."""
    kinds: dict[str, list[ShardedTensor]] = {}
    for name, tensor in plan.tensors.items():
        kinds.setdefault(re.sub(r"\.\d+\.", ".*.", name).removeprefix("model."), []).append(tensor)
    return [row_of(name, tensors, plan) for name, tensors in kinds.items()]


def row_of(name: str, tensors: list[ShardedTensor], plan: ShardingPlan) -> ShardRow:
    rule = tensors[0].rule
    shares = plan.shares[rule.counted] if rule.counted else ()
    return ShardRow(
        name,
        len(tensors),
        HOW.get(rule.axis, f"{rule.axis} by {rule.counted}"),
        " + ".join(str(len(share)) for share in shares),
        tuple(sum(tensor.rank_bytes(rank) for tensor in tensors) for rank in range(plan.n_ranks)),
    )
