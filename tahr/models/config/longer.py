"""Contexts beyond the first one of a model, where its files hold other divisors of rope for them."""

from dataclasses import replace

from tahr.models.config.record import ModelConfig
from tahr.models.config.rope import LongRope, Scaling


def longer_rope(cfg: ModelConfig) -> LongRope | None:
    """The divisors for texts beyond the context that a model has unasked."""
    scaling = cfg.kinds[0].rope.scaling
    return scaling.longer if isinstance(scaling, LongRope) else None


def reads_long_texts(cfg: ModelConfig) -> bool:
    """Whether `cfg` has the last divisors of its files: keys and values computed with others are not its own."""
    scaling = cfg.kinds[0].rope.scaling
    return isinstance(scaling, LongRope) and scaling.longer is None


def for_context(cfg: ModelConfig, n_tokens: int) -> ModelConfig:
    """`cfg` as it reads texts of so many tokens."""
    longer = longer_rope(cfg)
    if longer is None or n_tokens <= cfg.max_context:
        return cfg
    return replace(scaled_by(cfg, longer), max_context=longer.context)


def scaled_by(cfg: ModelConfig, scaling: Scaling) -> ModelConfig:
    """`cfg` with another scaling of the rope that all layers share."""
    turned = replace(cfg.kinds[0].rope, scaling=scaling)
    return replace(cfg, kinds=tuple(replace(kind, rope=turned) for kind in cfg.kinds))
