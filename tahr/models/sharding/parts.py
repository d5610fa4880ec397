"""The part of a tensor that one rank has: a view of the file where it lies in one place."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from tahr.backends.api import LoraFactors
from tahr.models.sharding.plan import HEAD_WEIGHT, ShardedTensor, ShardingPlan
from tahr.models.sharding.rules import TABLE
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor


class RankTensors(Mapping[str, HostTensor]):
    """The tensors of one rank, each cut when it is asked for; only that part of the file is read."""

    def __init__(self, tensors: Mapping[str, HostTensor], plan: ShardingPlan, rank: int):
        self._tensors = tensors
        self._plan = plan
        self._rank = rank

    def __getitem__(self, name: str) -> HostTensor:
        sharded = self._plan.tensors[name]
        stored = TABLE if name == HEAD_WEIGHT and self._plan.config.tied else name
        tensor = self._tensors[stored]
        if sharded.how == "whole":
            return tensor
        if sharded.how == "first" and self._rank:
            return zeros_like(tensor)
        return cut_axis(tensor, sharded.axis, sharded.parts[self._rank])

    def __contains__(self, name: object) -> bool:
        return name in self._plan.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._plan.tensors)

    def __len__(self) -> int:
        return len(self._plan.tensors)


def zeros_like(tensor: HostTensor) -> HostTensor:
    """A bias that another rank adds."""
    values = np.zeros(4 * tensor.n_values, np.uint8)
    return HostTensor(tensor.name, FORMATS["F32"], tensor.shape, values)


def cut_axis(tensor: HostTensor, axis: int, part: range) -> HostTensor:
    """The entries `part` of one axis; borders on the last axis lie between blocks."""
    is_last = axis == len(tensor.shape) - 1
    block = tensor.format.block if is_last else 1
    assert part.start % block == 0 and part.stop % block == 0, "a border inside a block"
    n_entries = tensor.shape[axis] // block
    n_before = math.prod(tensor.shape[:axis])
    entry_bytes = tensor.n_bytes // (n_before * n_entries)
    begin = part.start // block
    end = part.stop // block
    shape = (*tensor.shape[:axis], len(part), *tensor.shape[axis + 1 :])
    if n_before == 1:
        data = tensor.data[begin * entry_bytes : end * entry_bytes]
        return replace(tensor, shape=shape, data=data, start=tensor.start + begin * entry_bytes)
    found = tensor.data.reshape(n_before, n_entries, entry_bytes)[:, begin:end]
    return HostTensor(tensor.name, tensor.format, shape, found.reshape(-1), stored_as=tensor.stored_as)


def cut_factors(factors: LoraFactors, sharded: ShardedTensor, rank: int) -> LoraFactors:
    """An adapter's factors of one linear on one rank: what it adds there is cut as the linear is."""
    part = sharded.parts[rank]
    if sharded.how == "rows":
        return replace(factors, b=cut_axis(factors.b, 0, part))
    if sharded.how == "columns":
        return replace(factors, a=cut_axis(factors.a, 1, part))
    return factors
