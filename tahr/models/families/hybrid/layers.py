"""Which layers of a hybrid are recurrent."""

from collections.abc import Sequence
from dataclasses import replace

from tahr.models.config.record import ModelConfig

MOST_TAPS = 64  # limit on the taps of a convolution


def by_interval(cfg: ModelConfig, interval: int) -> list[bool]:
    """All but every `interval`-th."""
    return [(i + 1) % interval != 0 for i in range(cfg.n_layers)]


def with_recurrence(cfg: ModelConfig, recurrent: Sequence[bool]) -> ModelConfig:
    kinds = zip(cfg.kinds, recurrent, strict=True)
    return replace(cfg, kinds=tuple(replace(kind, recurrent=is_recurrent) for kind, is_recurrent in kinds))
