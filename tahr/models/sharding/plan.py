"""The sharding plan: for every tensor its axis, and the part of it that each rank has, from headers alone."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from tahr.errors import ConfigError, CorruptFile, UnsupportedModel
from tahr.models.config.record import ModelConfig
from tahr.models.sharding.rules import HEAD, TABLE, Axis, ShardRule, obstacle, rule_of
from tahr.models.sharding.shares import Indivisible, Shares, rank_config, shares_of
from tahr.weights.tensor import HostTensor

MOST_RANKS = 64
HEAD_WEIGHT = f"{HEAD}.weight"


@dataclass(frozen=True, slots=True)
class ShardedTensor:
    """A tensor, and what each rank has of the one axis that they share; all have the others whole."""

    rule: ShardRule
    format: str
    shape: tuple[int, ...]
    n_bytes: int
    axis: int  # index of the shared axis; of no meaning where none is
    parts: tuple[range, ...]  # parts by rank, along that axis

    @property
    def how(self) -> Axis:
        """Which part a rank has, in a word."""
        return self.rule.axis

    def rank_bytes(self, rank: int) -> int:
        """Bytes of a rank's part."""
        return self.n_bytes * len(self.parts[rank]) // self.shape[self.axis]

    def rank_shape(self, rank: int) -> tuple[int, ...]:
        """Shape of a rank's part."""
        return (*self.shape[: self.axis], len(self.parts[rank]), *self.shape[self.axis + 1 :])


@dataclass(frozen=True, slots=True)
class ShardingPlan:
    """A model over `n_ranks` ranks."""

    n_ranks: int
    config: ModelConfig
    shares: Shares
    tensors: Mapping[str, ShardedTensor]

    def rank_config(self, rank: int) -> ModelConfig:
        """The model in the numbers of one rank."""
        return rank_config(self.config, self.shares, rank)

    @property
    def digest(self) -> str:
        """A digest that is the same wherever the same parts of the same tensors go to the same ranks."""
        parts = [
            (name, each.how, each.format, each.shape, each.axis, each.parts) for name, each in self.tensors.items()
        ]
        return blake2b(repr((self.n_ranks, sorted(parts))).encode(), digest_size=16).hexdigest()

    def rank_bytes(self, rank: int) -> int:
        """Bytes of weights that a rank reads."""
        return sum(tensor.rank_bytes(rank) for tensor in self.tensors.values())


def plan_sharding(cfg: ModelConfig, headers: Mapping[str, HostTensor], n_ranks: int) -> ShardingPlan:
    """The plan for so many ranks; refused with the numbers that work, or by the name of what is not covered."""
    if what := obstacle(cfg):
        raise UnsupportedModel(f"Tahr does not share {what} among ranks yet: run it on one.")
    tensors = {name: tensor for name, tensor in headers.items() if is_used(name, cfg)}
    if cfg.tied and TABLE in headers:
        tensors[HEAD_WEIGHT] = headers[TABLE]
    rules = rules_of(cfg, tensors)
    blocks = blocks_of(rules, tensors)
    try:
        shares = shares_of(cfg, blocks, n_ranks)
    except Indivisible as reason:
        works = ", ".join(map(str, working(cfg, blocks)))
        raise ConfigError(
            f"{n_ranks} ranks cannot share this {cfg.family} model: {reason}. Numbers of ranks that work: {works}."
        ) from None
    return ShardingPlan(
        n_ranks,
        cfg,
        shares,
        {name: sharded(name, tensor, rules[name], shares, n_ranks) for name, tensor in tensors.items()},
    )


def is_used(name: str, cfg: ModelConfig) -> bool:
    """Whether the model has a use for a tensor: files may hold layers behind the last one, and a second head."""
    layer = name.removeprefix("model.layers.").partition(".")[0]
    is_behind = name.startswith("model.layers.") and layer.isdecimal() and int(layer) >= cfg.n_layers
    return not is_behind and not (cfg.tied and name.startswith(f"{HEAD}."))


def rules_of(cfg: ModelConfig, tensors: Mapping[str, HostTensor]) -> dict[str, ShardRule]:
    """The rule of every tensor."""
    found = {name: rule_of(name, len(tensor.shape)) for name, tensor in tensors.items()}
    if unknown := [name for name, rule in found.items() if rule is None]:
        raise UnsupportedModel(
            f"Tahr does not share {cfg.family} models with a tensor {unknown[0]} among ranks yet: run it on one."
        )
    return {name: rule for name, rule in found.items() if rule}


def blocks_of(rules: Mapping[str, ShardRule], tensors: Mapping[str, HostTensor]) -> dict[str, int]:
    """The numbers between two places where columns may be cut, by what they count."""
    blocks: Counter[str] = Counter()
    for name, rule in rules.items():
        if rule.axis == "columns":
            blocks[rule.counted] = math.lcm(blocks[rule.counted] or 1, tensors[name].format.block)
    return dict(blocks)


def working(cfg: ModelConfig, blocks: Mapping[str, int]) -> list[int]:
    """Numbers of ranks that can share the model."""
    return [n for n in range(1, min(cfg.n_heads, MOST_RANKS) + 1) if is_divisible(cfg, blocks, n)]


def is_divisible(cfg: ModelConfig, blocks: Mapping[str, int], n_ranks: int) -> bool:
    try:
        shares_of(cfg, blocks, n_ranks)
    except Indivisible:
        return False
    return True


def sharded(name: str, tensor: HostTensor, rule: ShardRule, shares: Shares, n_ranks: int) -> ShardedTensor:
    """The parts of one tensor."""
    facts = rule, tensor.format.name, tensor.shape, tensor.n_bytes
    axis = shared_axis(name, tensor, rule)
    n = tensor.shape[axis]
    if rule.axis == "whole":
        return ShardedTensor(*facts, axis, (range(n),) * n_ranks)
    if rule.axis == "first":
        return ShardedTensor(*facts, axis, (range(n), *[range(0)] * (n_ranks - 1)))
    parts = shares[rule.counted]
    # Key heads on several ranks are counted once.
    total = max(part.stop for part in parts)
    if n % total:
        raise CorruptFile(
            f"Tensor {tensor.name} has the shape {list(tensor.shape)}, but the model's configuration has {total} of "
            f"its {rule.counted}. The two belong to different models; fetch the model again."
        )
    each = n // total
    return ShardedTensor(*facts, axis, tuple(range(part.start * each, part.stop * each) for part in parts))


def shared_axis(name: str, tensor: HostTensor, rule: ShardRule) -> int:
    """Rows are the last axis but one of matrices and stacks of them, and the only one of vectors."""
    n_axes = len(tensor.shape)
    is_matrix = n_axes > 1 and name.endswith(".weight")
    if 0 in tensor.shape or not n_axes:
        raise CorruptFile(f"Tensor {tensor.name} has no numbers; the file is damaged, fetch the model again.")
    if rule.axis == "matrices":
        return 0
    return n_axes - 2 if is_matrix and rule.axis == "rows" else n_axes - 1
